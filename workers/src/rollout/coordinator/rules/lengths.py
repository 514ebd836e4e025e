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
KNOWN_MIN = 32
"""Fewer lengths than this say nothing."""


class Lengths:
    """A window of lengths in tokens, oldest out first."""

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._window: deque[int] = deque(maxlen=KEPT_MAX)
        self._ordered: list[int] = []
        self._sums: list[int] | None = None
        self.add(values)

    def __len__(self) -> int:
        return len(self._window)

    @property
    def known(self) -> bool:
        """Whether there are enough to decide from."""
        return len(self._window) >= KNOWN_MIN

    def add(self, values: Iterable[int]) -> None:
        """Samples that have ended."""
        self._sums = None
        for value in values:
            if len(self._window) == KEPT_MAX:
                del self._ordered[bisect.bisect_left(self._ordered, self._window[0])]
            self._window.append(value)
            bisect.insort(self._ordered, value)

    def quantile(self, share: float) -> float:
        """The length that so many samples do not exceed (nearest rank); 0 with none seen."""
        if not self._ordered:
            return 0.0
        rank = min(len(self._ordered), max(1, math.ceil(share * len(self._ordered))))
        return float(self._ordered[rank - 1])

    def remaining(self, num_tokens: int) -> float:
        """Mean of what samples that got past ``num_tokens`` had still to come; at least one token."""
        place = bisect.bisect_right(self._ordered, num_tokens)
        count = len(self._ordered) - place
        if not count:
            return 1.0
        if self._sums is None:
            self._sums = [0, *itertools.accumulate(self._ordered)]
        return max(1.0, (self._sums[-1] - self._sums[place]) / count - num_tokens)

    def longest_of(self, count: int) -> float:
        """About the longest of so many samples."""
        return self.quantile(count / (count + 1))
