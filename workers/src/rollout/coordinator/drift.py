"""Do actors sample with the probabilities that the learner computes? It may warn or stop, never correct.

The learner's ``mismatch_kl`` says at every step how far the two are apart, whatever the reason: another
engine, kernel or dtype, a temperature or a truncation that only one side applies, weights that are not
the ones that were named. A correction for it is the algorithm's (``importanceSampling``), not this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

METRIC = "mismatch_kl"
STEPS = 3
"""So many steps in a row above a bound count; one alone may be a single odd completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftBounds:
    """Nats per token. ``stop`` None: warn only."""

    warn: float
    stop: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What a run's last steps come to, in the words of the ``LogprobsAgree`` condition."""

    level: Literal["none", "warn", "stop"]
    message: str


def judge_drift(recent: Sequence[Mapping[str, Any]], bounds: DriftBounds) -> Drift:
    """From the metrics of the last steps, oldest first. Steps without the metric (rows) never drift."""
    last = [step.get(METRIC) for step in recent[-STEPS:]]
    known = [float(value) for value in last if isinstance(value, int | float)]
    if len(known) < STEPS:
        return Drift(level="none", message="")
    least = min(known)
    if bounds.stop is not None and least > bounds.stop:
        return Drift(level="stop", message=_describe(known, "limits.mismatchKlStop", bounds.stop))
    if least > bounds.warn:
        return Drift(level="warn", message=_describe(known, "limits.mismatchKlWarn", bounds.warn))
    return Drift(level="none", message="")


def _describe(values: Sequence[float], field: str, bound: float) -> str:
    shown = ", ".join(f"{value:.3g}" for value in values)
    return (
        f"{METRIC} was {shown} in the last {STEPS} steps, above {field} ({bound:g}): actors do not sample"
        " with the probabilities that the learner computes; compare engine version, dtype and sampling"
        " settings, or look with `rollout debug rollout-only`"
    )
