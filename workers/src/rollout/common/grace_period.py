"""How much of a grace period is left for work, once a process was told to go."""

from __future__ import annotations

PARTING_SECONDS = 5.0
"""What is kept for handing back, reporting, and ending what has not ended by itself."""


def working_seconds(grace_seconds: float) -> float:
    """Seconds after the word to go in which work may still be finished or saved."""
    return max(0.0, grace_seconds - PARTING_SECONDS)
