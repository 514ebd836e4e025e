"""The laptop's operator: the same plan that a cluster gets, applied to processes of this machine.

Loads no torch and no transformers, whatever it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout.supervisor.run import RunResult, run_manifest

__all__ = ["RunResult", "run_manifest"]


def __getattr__(name: str) -> Any:
    """Load the runner on first use: looking at run directories needs none of it."""
    if name in __all__:
        from rollout.supervisor import run

        return getattr(run, name)
    raise AttributeError(f"module 'rollout.supervisor' has no attribute {name!r}")
