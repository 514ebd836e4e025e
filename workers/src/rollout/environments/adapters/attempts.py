"""Replies of an episode that are actions, and those that are none: counted, answered, and the end after too many in a row."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.turns import Ending, State
from rollout.types import Message

MISTAKES_MAX = 3
"""Replies in a row that are no action."""


@dataclass(slots=True)
class Attempts:
    """Of one episode; told as its signals."""

    steps: int = 0
    """Replies that were actions."""
    mistakes: int = 0
    """Replies that were none; ``MISTAKES_MAX`` in a row end the episode."""
    _in_a_row: int = 0

    def took(self) -> None:
        """A reply was an action."""
        self.steps += 1
        self._in_a_row = 0

    def refuse(self, why: str) -> State | Ending:
        """A reply was none: it is told why and costs a turn, or it was the last one."""
        self.mistakes += 1
        self._in_a_row += 1
        if self._in_a_row == MISTAKES_MAX:
            return Ending(kind="no-action", turn_reward=0.0, signals=self.signals())
        told = Message(role="user", content=f"No action. {why}")
        return State(messages=(told,), turn_reward=0.0, signals=self.signals())

    def signals(self) -> dict[str, float]:
        """Both counts."""
        return {"steps": float(self.steps), "mistakes": float(self.mistakes)}
