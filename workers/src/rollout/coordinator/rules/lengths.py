"""How long samples of this run are: the lengths of the last accepted ones, and what they say of one under way.

Only ended samples are counted, so the newest of a shifting policy are found late; what is decided from
this costs time when it is wrong, never a sample.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Iterable

KEPT_MAX = 4096
MOVED_MAX = 64
"""Up to so many newer lengths are moved into an ordered window one by one; more order it anew."""
KNOWN_MIN = 32
"""Fewer lengths than this say nothing."""


class Lengths:
    """A window of lengths in tokens, oldest out first."""

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._window: deque[int] = deque(maxlen=KEPT_MAX)
        self._ordered: list[int] | None = None
        self._sums: list[int] | None = None
        self._come: list[int] = []
        self._gone: list[int] = []
        self.add(values)

    def __len__(self) -> int:
        return len(self._window)

    @property
    def known(self) -> bool:
        """Whether there are enough to decide from."""
        return len(self._window) >= KNOWN_MIN

    def add(self, values: Iterable[int]) -> None:
        """Samples that have ended. They are put in order when somebody asks."""
        for value in values:
            if len(self._window) == KEPT_MAX:
                self._gone.append(self._window[0])
            self._window.append(value)
            self._come.append(value)
        if len(self._come) > MOVED_MAX:
            self._ordered = None
            self._come.clear()
            self._gone.clear()

    def _order(self) -> list[int]:
        """The window, shortest first."""
        if self._ordered is None:
            self._ordered, self._sums = sorted(self._window), None
        elif self._come:
            self._sums = None
            for value in self._come:
                bisect.insort(self._ordered, value)
            for value in self._gone:
                del self._ordered[bisect.bisect_left(self._ordered, value)]
        self._come.clear()
        self._gone.clear()
        return self._ordered

    def quantile(self, share: float) -> float:
        """The length that so many samples do not exceed (nearest rank); 0 with none seen."""
        ordered = self._order()
        if not ordered:
            return 0.0
        rank = min(len(ordered), max(1, math.ceil(share * len(ordered))))
        return float(ordered[rank - 1])

    def remaining(self, num_tokens: int) -> float:
        """Mean of what samples that got past ``num_tokens`` had still to come; at least one token."""
        ordered = self._order()
        place = bisect.bisect_right(ordered, num_tokens)
        count = len(ordered) - place
        if not count:
            return 1.0
        if self._sums is None:
            self._sums = [0, *itertools.accumulate(ordered)]
        return max(1.0, (self._sums[-1] - self._sums[place]) / count - num_tokens)

    def longest_of(self, count: int) -> float:
        """About the longest of so many samples."""
        return self.quantile(count / (count + 1))
