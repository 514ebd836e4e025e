"""What the processes of a run find in their environment, on one machine and in pods."""

from __future__ import annotations

from rollout_api.v1alpha1.common import EnvRole
from rollout_api.v1alpha1.run import RolloutRunSpec

RUN_DIR_VARIABLE = "ROLLOUT_RUN_DIR"
"""Set in every process of a run and in all that they start: user code finds the folder by it."""


def user_env(spec: RolloutRunSpec, role: EnvRole) -> dict[str, str]:
    """What ``spec.env`` gives to the processes of a role, over the environment that every child inherits.

    The value of a Secret is inherited, as the author sets it on one machine, or as the kubelet does; where
    the role is not given it, it is empty.
    """
    plain = {one.name: one.value or "" for one in spec.env if not one.secret and one.goes_to(role)}
    withheld = {one.name: "" for one in spec.env if one.secret and not one.goes_to(role)}
    return plain | withheld


def thread_env(threads: int) -> dict[str, str]:
    """What makes libraries compute with so many threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
