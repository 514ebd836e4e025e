"""Named metrics of an evaluation, from what each reward said of each answer. Pure.

A metric is the mean over prompts of one part of the reward (``strict`` of ``gsm8k/strict``), or the ratio of two sums
(``inst_strict``: instructions followed of instructions given). Intervals are clustered by prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.evaluations.statistics import Z_95, Interval, mean_interval, wilson

Parts = Sequence[Sequence[Mapping[str, float]]]
"""What the rewards said by prompt and sample: values by name of the source, and as ``source/name``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``name`` in reports, ``part`` of the rewards; with ``of`` the sum of ``part`` over the sum of that."""

    name: str
    part: str
    of: str | None = None


def measure(metrics: Iterable[Metric], parts: Parts) -> dict[str, dict[str, float]]:
    """``{value, low, high}`` by metric; one whose part no answer has is left out."""
    found: dict[str, dict[str, float]] = {}
    for metric in metrics:
        interval = _ratio(metric, parts) if metric.of is not None else _mean(metric, parts)
        if interval is not None:
            found[metric.name] = as_plain(interval)
    return found


def as_plain(interval: Interval) -> dict[str, Any]:
    """As summaries hold it."""
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _mean(metric: Metric, parts: Parts) -> Interval | None:
    rows = [[one[metric.part] for one in samples if metric.part in one] for samples in parts]
    rows = [row for row in rows if row]
    if not rows:
        return None
    means = [math.fsum(row) / len(row) for row in rows]
    if all(0 <= value <= 1 for value in means):
        return mean_interval(means, sum(map(len, rows)))
    return _normal(means)


def _normal(means: Sequence[float]) -> Interval:
    """The interval of a mean that is no share."""
    num = len(means)
    mean = math.fsum(means) / num
    if num == 1:
        return Interval(value=mean, low=-math.inf, high=math.inf)
    error = math.sqrt(math.fsum((one - mean) ** 2 for one in means) / (num - 1) / num)
    return Interval(value=mean, low=mean - Z_95 * error, high=mean + Z_95 * error)


def _ratio(metric: Metric, parts: Parts) -> Interval | None:
    """Sum over sum; the error by linearisation, prompts being the clusters."""
    sums = [_sums(metric, samples) for samples in parts]
    total = math.fsum(of for _, of in sums)
    if not total:
        return None
    ratio = math.fsum(part for part, _ in sums) / total
    num = len(sums)
    spread = math.fsum((part - ratio * of) ** 2 for part, of in sums)
    trials = float(num)
    if num > 1 and spread > 0:
        trials = ratio * (1 - ratio) / (num / (num - 1) * spread / total**2)
    return wilson(ratio, min(max(trials, 1.0), total))


def _sums(metric: Metric, samples: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    assert metric.of is not None
    kept = [one for one in samples if metric.part in one and metric.of in one]
    return math.fsum(one[metric.part] for one in kept), math.fsum(one[metric.of] for one in kept)
