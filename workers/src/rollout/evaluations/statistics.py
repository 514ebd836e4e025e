"""Shares with honest intervals: accuracy and unbiased pass@k, clustered by prompt. Pure.

Samples of one prompt are not independent, so the interval counts prompts first: Wilson's score interval
at an effective number of trials, ``p (1 - p) / variance of the mean``, kept between the number of
prompts and the number of samples. One sample a prompt gives the plain Wilson interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CORRECT_MIN = 0.5
"""A completion is correct when its reward is at least this; the builtin scorers give 0 or 1."""

Z_95 = 1.959963984540054
"""97.5th percentile of the standard normal: two-sided 95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate of a share and its 95 % confidence interval, all in [0, 1]."""

    value: float
    low: float
    high: float


def wilson(share: float, trials: float, z: float = Z_95) -> Interval:
    """Wilson's score interval (Wilson 1927); ``trials`` may be fractional, above 0."""
    center = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = (
        z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    )
    # At share 0 and 1 the interval reaches the border exactly; sums of floats may miss it.
    low = 0.0 if share == 0 else max(0.0, center - half)
    high = 1.0 if share == 1 else min(1.0, center + half)
    return Interval(value=share, low=low, high=high)


def mean_interval(values: Sequence[float], num_samples: int | None = None) -> Interval:
    """The mean of one value in [0, 1] per prompt, with its clustered interval.

    ``num_samples`` counts all samples behind the values (None: one each). Raises ValueError without
    values.
    """
    if not values:
        raise ValueError("no values to average")
    num_prompts = len(values)
    most = num_prompts if num_samples is None else max(num_samples, num_prompts)
    share = min(1.0, max(0.0, math.fsum(values) / num_prompts))
    trials = float(num_prompts)
    if num_prompts > 1:
        spread = math.fsum((value - share) ** 2 for value in values) / (num_prompts - 1)
        if spread > 0:
            trials = share * (1 - share) / (spread / num_prompts)
    return wilson(share, min(max(trials, num_prompts), most))


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The unbiased chance that one of ``k`` drawn samples is correct: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021 (arXiv:2107.03374), equation 1. Raises ValueError unless 1 <= k <= n.
    """
    if not 1 <= k <= num_samples or not 0 <= num_correct <= num_samples:
        raise ValueError(f"pass@{k} of {num_correct} correct in {num_samples} samples")
    wrong = num_samples - num_correct
    if wrong < k:
        return 1.0
    return 1.0 - math.prod((wrong - i) / (num_samples - i) for i in range(k))


def ks_measured(num_samples: int) -> tuple[int, ...]:
    """The k of pass@k with so many samples of every prompt: powers of two, and all of them."""
    powers = tuple(1 << bit for bit in range(num_samples.bit_length()))
    return powers if num_samples in powers else (*powers, num_samples)


def summarise(rewards: Sequence[Sequence[float]]) -> dict[str, Any]:
    """An evaluation's metrics from its rewards by prompt and sample.

    ``accuracy`` and ``pass@k`` for each k of ``ks_measured`` are ``{value, low, high}``; ``reward`` is
    the mean, ``num_samples`` the count. Raises ValueError when a prompt has no sample.
    """
    counts = [(len(row), sum(value >= CORRECT_MIN for value in row)) for row in rewards]
    if not counts or any(n == 0 for n, _ in counts):
        raise ValueError("every prompt of an evaluation needs at least one sample")
    total = sum(n for n, _ in counts)
    metrics: dict[str, Any] = {
        "accuracy": _plain(mean_interval([correct / n for n, correct in counts], total))
    }
    for k in ks_measured(min(n for n, _ in counts)):
        values = [pass_at_k(n, correct, k) for n, correct in counts]
        metrics[f"pass@{k}"] = _plain(mean_interval(values, total))
    metrics["reward"] = math.fsum(value for row in rewards for value in row) / total
    metrics["num_samples"] = total
    return metrics


def _plain(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
