"""rollout: LLM post-training.

The library in three lines::

    import rollout
    run = rollout.run("arithmetic.yaml", set={"train.maxSteps": 50})
    run.metrics().to_pandas()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout.client.service import connect
    from rollout.library import Run, compare, open_run, run

__all__ = ["Run", "compare", "connect", "open_run", "run"]


def __getattr__(name: str) -> Any:
    """Load the library on first use, so that importing a submodule stays cheap."""
    if name == "connect":
        from rollout.client.service import connect

        return connect
    if name in __all__:
        from rollout import library

        return getattr(library, name)
    raise AttributeError(f"module 'rollout' has no attribute {name!r}")
