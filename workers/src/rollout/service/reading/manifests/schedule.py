"""Learning rates, step by step, as the schedule that gives them: constant, linear or cosine, with a warm-up or without.

A schedule is taken only where every recorded rate is the one that a run would have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rollout.learner.config.optimizer import ScheduleSettings
from rollout.learner.model.optim import learning_rate

TOLERANCE = 1e-4
"""Of the largest rate."""
HORIZONS = (0, 1, -1, 2)
"""Steps that a loop's horizon may lie behind its last one."""


def fit_schedule(rates: Sequence[float]) -> tuple[float, dict[str, Any]] | None:
    """The peak and ``train.schedule``; None where no schedule of a manifest gives these rates."""
    peak = max(rates)
    for settings in _candidates(rates, peak):
        if all(
            abs(learning_rate(settings, peak, step) - rate) <= TOLERANCE * peak
            for step, rate in enumerate(rates, start=1)
        ):
            return peak, _document(settings)
    return None


def _candidates(rates: Sequence[float], peak: float) -> Iterator[ScheduleSettings]:
    """Few: the rates themselves say where a warm-up ends, and their last one how far they fall."""
    num = len(rates)
    first = next(i for i, rate in enumerate(rates, start=1) if rate >= peak * (1 - TOLERANCE))
    for warmup in dict.fromkeys((0 if first == 1 else first, first)):
        yield ScheduleSettings(warmup_steps=warmup)
        for kind in ("linear", "cosine"):
            for more in HORIZONS:
                ratio = _ratio(
                    kind, rates[-1] / peak if peak else 1.0, num, max(warmup, 1), num + more
                )
                if ratio is not None:
                    yield ScheduleSettings(
                        kind=kind,
                        warmup_steps=warmup,
                        horizon_steps=num + more,
                        minimum_ratio=ratio,
                    )


def _ratio(
    kind: Literal["linear", "cosine"], last: float, step: int, start: int, horizon: int
) -> float | None:
    """The share at the horizon with which ``step`` has ``last`` of the peak."""
    if horizon <= start:
        return None
    done = min(1.0, (step - start) / (horizon - start))
    left = (1 + math.cos(math.pi * done)) / 2 if kind == "cosine" else 1 - done
    if left >= 1:
        return None
    found = (last - left) / (1 - left)
    return min(max(found, 0.0), 1.0) if -TOLERANCE <= found <= 1 else None


def _document(settings: ScheduleSettings) -> dict[str, Any]:
    inner: dict[str, Any] = {"warmupSteps": settings.warmup_steps} if settings.warmup_steps else {}
    if settings.kind != "constant":
        inner["horizonSteps"] = settings.horizon_steps
        inner["minimumRatio"] = f"{settings.minimum_ratio:.6g}"
    return {settings.kind: inner}
