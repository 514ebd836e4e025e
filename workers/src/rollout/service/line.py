"""The order of one model's calls: call n runs when calls 1 to n-1 are answered, whenever each came.

Plain data and decisions; who computes and who waits is the desk's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollout.service.refusals import CallRefused

AHEAD_MAX = 1024
"""Calls of one model that may wait, those that came before their turn included."""


@dataclass(slots=True, kw_only=True)
class CallLine:
    """One model's calls. ``done`` is the last that is answered, ``chain`` what the model came to there.

    ``waiting`` are the numbers of calls that have come.
    ``broken``: why nothing more is computed in this process, though calls go on being accepted.
    """

    model_id: str
    chain: str
    done: int = 0
    waiting: set[int] = field(default_factory=set)
    broken: str = ""

    def check_place(self, seq: int) -> None:
        """Raise CallRefused for a place that no call can take."""
        if seq < 1:
            raise CallRefused(
                f"seq_id: expected 1 or more, got {seq}; a model's calls are numbered from 1"
            )
        newest = max(self.waiting, default=self.done)
        if seq > newest + AHEAD_MAX:
            raise CallRefused(
                f"seq_id: expected {self.done + 1} to {newest + AHEAD_MAX}, got {seq}; calls of {self.model_id} are"
                f" numbered without holes, and the next is {newest + 1}"
            )
        if seq > self.done + AHEAD_MAX:
            raise CallRefused(
                f"seq_id {seq} of {self.model_id}: {AHEAD_MAX} calls wait already behind {self.done}; try again",
                429,
            )

    def add(self, seq: int) -> None:
        """Take in an accepted call, which is in the book until its turn; one that is done or waits changes nothing."""
        if seq > self.done:
            self.waiting.add(seq)

    @property
    def is_ready(self) -> bool:
        """Whether there is a call whose turn it is."""
        return not self.broken and self.done + 1 in self.waiting

    @property
    def missing(self) -> int | None:
        """The call that others wait for and that has not come; None where none do."""
        return self.done + 1 if self.waiting and self.done + 1 not in self.waiting else None

    def finish(self, chain: str) -> None:
        """The call whose turn it was is answered."""
        self.done += 1
        self.waiting.discard(self.done)
        self.chain = chain
