"""How the coefficient of a KL penalty changes from step to step."""

from __future__ import annotations

from dataclasses import dataclass

ERROR_MAX = 0.2
"""The relative error that a controller acts on is clipped to +-0.2 (Ziegler 2019)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlTarget:
    """``kl``: wanted KL per answer in nats. ``horizon``: samples in which the coefficient may move by 20 %."""

    kl: float
    horizon: int


def next_kl_coefficient(
    coefficient: float, target: KlTarget | None, *, kl: float, num_samples: int
) -> float:
    """``beta (1 + clip(kl / target - 1, -0.2, 0.2) num_samples / horizon)``; without a target ``beta``.

    ``kl`` is the measured KL per answer: the mean over ``num_samples`` answers of the sum over an
    answer's tokens, in nats. The caller sees to ``0.2 num_samples < horizon``: then the result stays
    above 0.

    Source: Ziegler 2019 (arXiv 1909.08593) section 2.2; the horizon as in its code (10,000 episodes).
    """
    if target is None:
        return coefficient
    error = min(max(kl / target.kl - 1, -ERROR_MAX), ERROR_MAX)
    return coefficient * (1 + error * num_samples / target.horizon)
