"""What the processes of a run find in their environment, on one machine and in pods."""

from __future__ import annotations

from rollout_api.v1alpha1.run import RolloutRunSpec

RUN_DIR_VARIABLE = "ROLLOUT_RUN_DIR"
"""Set in every process of a run and in all that they start: user code finds the folder by it."""


def user_env(spec: RolloutRunSpec) -> dict[str, str]:
    """``spec.env``; ``secretEnv`` is taken from the environment that every child inherits."""
    return {variable.name: variable.value for variable in spec.env}


def thread_env(threads: int) -> dict[str, str]:
    """What makes libraries compute with so many threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
