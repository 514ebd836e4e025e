"""What a benchmark gives: figures with a bar and an interval, and the raw samples behind them."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build" / "bench"
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number. ``bar`` reads like ``>= 1.3`` or ``info``; ``low``/``high`` are the ends
    of the interval over repeats, and the bar is held by the end that is worse."""

    name: str
    value: float
    unit: str
    bar: str
    low: float
    high: float
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the bar is met by the worse end of the interval."""
        sign, _, bound = self.bar.partition(" ")
        if sign == ">=":
            return self.low >= float(bound)
        if sign == ">":
            return self.low > float(bound)
        return self.high <= float(bound) if sign == "<=" else True

    def line(self) -> str:
        """The line printed for people."""
        verdict = "" if self.bar == "info" else "holds" if self.holds else "SHORT"
        return (
            f"{self.name:<44} {self.value:>10.4g} {self.unit:<12} bar {self.bar:<8} "
            f"[{self.low:.4g}, {self.high:.4g}] {verdict}"
        )


def ratio(
    name: str, ours: Sequence[float], theirs: Sequence[float], bar: str, unit: str = "x"
) -> Figure:
    """How many times faster ours is, from paired seconds: median of theirs / ours, pair by pair.

    The interval is a 95 % bootstrap of the median over the pairs.
    """
    pairs = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, high = bootstrap(pairs)
    samples = {"ours_seconds": list(ours), "theirs_seconds": list(theirs)}
    return Figure(
        name=name,
        value=statistics.median(pairs),
        unit=unit,
        bar=bar,
        low=low,
        high=high,
        samples=samples,
    )


def level(name: str, values: Sequence[float], unit: str, bar: str) -> Figure:
    """A plain quantity over repeats: its median, with the bootstrap interval."""
    low, high = bootstrap(values)
    return Figure(
        name=name,
        value=statistics.median(values),
        unit=unit,
        bar=bar,
        low=low,
        high=high,
        samples={"values": list(values)},
    )


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile interval of the median, seeded."""
    draw = random.Random(7)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def write(target: str, figures: Sequence[Figure]) -> None:
    """``build/bench/<target>.json`` and, beside it, the raw samples."""
    BUILD.mkdir(parents=True, exist_ok=True)
    keys = ("name", "value", "unit", "bar", "low", "high")
    rows = [{**{key: getattr(f, key) for key in keys}, "holds": f.holds} for f in figures]
    (BUILD / f"{target}.json").write_text(json.dumps(rows, indent=1) + "\n")
    raw = {figure.name: asdict(figure)["samples"] for figure in figures}
    (BUILD / f"{target}.raw.json").write_text(json.dumps(raw, indent=1) + "\n")
