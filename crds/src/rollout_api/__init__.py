"""The contract of rollout: kinds, presets, conditions, names, generated schemas. Imports pydantic only.

Importing this package costs next to nothing: the models load when a name below is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_api.parse import parse_object, parse_run
    from rollout_api.presets import Resolved, resolve
    from rollout_api.v1alpha1.run import RolloutRun, RolloutRunSpec
    from rollout_api.worker import WorkerConfig

GROUP = "rollout.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

__all__ = [
    "API_VERSION",
    "GROUP",
    "VERSION",
    "Resolved",
    "RolloutRun",
    "RolloutRunSpec",
    "WorkerConfig",
    "parse_object",
    "parse_run",
    "resolve",
]

_HOMES = {
    "Resolved": "rollout_api.presets",
    "RolloutRun": "rollout_api.v1alpha1.run",
    "RolloutRunSpec": "rollout_api.v1alpha1.run",
    "WorkerConfig": "rollout_api.worker",
    "parse_object": "rollout_api.parse",
    "parse_run": "rollout_api.parse",
    "resolve": "rollout_api.presets",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rollout_api' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
