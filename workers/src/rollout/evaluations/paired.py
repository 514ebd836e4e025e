"""Two models on the same prompts: the mean difference and its interval, prompts being the clusters. Pure.

Paired differences (Miller 2024, arXiv:2411.00640): far narrower than two intervals of their own, as hard prompts are hard
for both. Student's t with one degree less than there are prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollout.evaluations.statistics import Z_95


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """One prompt of an evaluation: what was asked, and a value for each sample by metric."""

    prompt: str
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """``value`` is ours minus the baseline's, with its 95 % interval; ``told_apart``: the interval leaves out 0."""

    metric: str
    num_prompts: int
    ours: float
    baseline: float
    value: float
    low: float
    high: float

    @property
    def told_apart(self) -> bool:
        """Whether the data say which is better."""
        return not self.low <= 0 <= self.high


def compare_items(
    ours: Mapping[int, MeasuredPrompt], baseline: Mapping[int, MeasuredPrompt], metric: str
) -> Difference | None:
    """Over the prompts that both answered; None without any. Raises ValueError where a prompt is not the same."""
    pairs: list[tuple[float, float]] = []
    for place in sorted(ours.keys() & baseline.keys()):
        one, other = ours[place], baseline[place]
        if one.prompt != other.prompt:
            raise ValueError(
                f"prompt {place} is {one.prompt[:60]!r} here and {other.prompt[:60]!r} in the baseline"
            )
        values = [side.values.get(metric, ()) for side in (one, other)]
        if all(values):
            pairs.append((_mean(values[0]), _mean(values[1])))
    return _difference(metric, pairs) if pairs else None


def _difference(metric: str, pairs: Sequence[tuple[float, float]]) -> Difference:
    num = len(pairs)
    apart = [one - other for one, other in pairs]
    value = _mean(apart)
    half = math.inf
    if num > 1:
        spread = math.fsum((one - value) ** 2 for one in apart) / (num - 1)
        half = t_quantile(num - 1) * math.sqrt(spread / num)
    return Difference(
        metric=metric,
        num_prompts=num,
        ours=_mean([one for one, _ in pairs]),
        baseline=_mean([other for _, other in pairs]),
        value=value,
        low=value - half,
        high=value + half,
    )


_SMALL = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004)
"""Student's t at 97.5 % for 1 to 8 degrees of freedom."""


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: the table, then Cornish and Fisher's expansion (within 1e-4)."""
    if degrees <= len(_SMALL):
        return _SMALL[degrees - 1]
    z, n = Z_95, float(degrees)
    terms = (
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4),
    )
    return z + math.fsum(terms)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
