"""What a run's learner and those who image it tell each other: by which variables, and what its digest says.

Imports nothing but the standard library.
"""

from __future__ import annotations

CELL_VARIABLE = "ROLLOUT_LEARNER_CELL"
"""The folder of the cell that a learner was started in."""
CONFIG_VARIABLE = "ROLLOUT_LEARNER_CONFIG"
"""The configuration that a learner goes on with that was brought back."""
STATE_CHARACTERS = 32
SEPARATOR = "+"


def join_digests(weights: str, state: str) -> str:
    """What a learner tells of its state: its version's digest, and one over optimizer, masters and random states."""
    return f"{weights}{SEPARATOR}{state[:STATE_CHARACTERS]}"


def weights_of(told: str) -> str:
    """The version's digest of what a learner told; empty where it is none."""
    weights, separator, _ = told.partition(SEPARATOR)
    return weights if separator else ""
