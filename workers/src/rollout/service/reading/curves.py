"""A curve of any number of steps in bounded memory: stretches of equal length, each with its mean, lowest and highest value.

A value of one step that is far from the others is seen however long the curve is: it is an end of its stretch.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

STRETCHES_MAX = 440
"""Then two become one; even. A shorter curve keeps each value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps ``first`` to ``last`` with a finite value; of one step all three values are the same."""

    first: int
    last: int
    mean: float
    low: float
    high: float


@dataclass(slots=True, kw_only=True)
class LongCurve:
    """Owns the stretches of one curve; ``width`` is how many steps each has."""

    width: int = 1
    _sums: array[float] = field(default_factory=lambda: array("d"))
    _counts: array[int] = field(default_factory=lambda: array("q"))
    _lows: array[float] = field(default_factory=lambda: array("d"))
    _highs: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        """The value of a step, from 1 on; steps come in their order. What is no number is left out."""
        place = (step - 1) // self.width
        while place >= STRETCHES_MAX:
            self._halve()
            place = (step - 1) // self.width
        while len(self._sums) <= place:
            self._append()
        if not math.isfinite(value):
            return
        self._sums[place] += value
        self._counts[place] += 1
        self._lows[place] = min(self._lows[place], value)
        self._highs[place] = max(self._highs[place], value)

    def stretches(self) -> Iterator[Stretch]:
        """Those that have a value, in order."""
        for place, count in enumerate(self._counts):
            if count:
                yield Stretch(
                    first=place * self.width + 1,
                    last=(place + 1) * self.width,
                    mean=self._sums[place] / count,
                    low=self._lows[place],
                    high=self._highs[place],
                )

    def _append(self) -> None:
        self._sums.append(0.0)
        self._counts.append(0)
        self._lows.append(math.inf)
        self._highs.append(-math.inf)

    def _halve(self) -> None:
        if len(self._sums) % 2:
            self._append()
        self._sums = array("d", map(sum, _pairs(self._sums)))
        self._counts = array("q", map(sum, _pairs(self._counts)))
        self._lows = array("d", map(min, _pairs(self._lows)))
        self._highs = array("d", map(max, _pairs(self._highs)))
        self.width *= 2


def _pairs(values: array) -> Iterator[tuple]:
    return zip(values[::2], values[1::2], strict=True)
