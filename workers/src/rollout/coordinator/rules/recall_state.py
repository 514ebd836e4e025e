"""What a coordinator remembers of work that is moved between actors. Lost with its process, to no harm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from rollout.coordinator.rules.lengths import Lengths

Why = Literal["steal", "deadline"]
MOVES_MAX = 3
"""Times that one group is taken from an actor that is at work on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRequest:
    """A task that its actor was asked to return, under which lease, and when (coordinator's clock)."""

    epoch: int
    asked_at: float
    why: Why


@dataclass(slots=True, kw_only=True)
class RecallState:
    """``begun``: when a lease was first seen at work; ``told`` counts moves by reason.

    ``looked_at``: when it was last asked whether an idle actor could take something over.
    """

    lengths: Lengths = field(default_factory=Lengths)
    requests: dict[str, RecallRequest] = field(default_factory=dict)
    begun: dict[tuple[str, int], float] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    tokens_again: int = 0
    looked_at: float = float("-inf")

    @property
    def settled(self) -> frozenset[str]:
        """Tasks that are not to be asked for: they are on their way, or were moved often enough."""
        often = (task_id for task_id, times in self.times.items() if times >= MOVES_MAX)
        return frozenset((*self.requests, *often))
