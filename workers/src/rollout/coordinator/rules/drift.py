"""Is what actors sampled what the learner takes it for? It may warn or stop, never correct.

The learner's ``mismatch_kl`` says at every step how far the probabilities of the two are apart, whatever
the reason: another engine, kernel or dtype, a temperature or a truncation that only one side applies,
weights that are not the ones that were named. A correction for it is the algorithm's
(``importanceSampling``), not this. ``retokenised_share`` says how often a sample's text is not its tokens:
nothing here encodes a text again, but whoever reads texts (rewards, exports) sees other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

METRIC = "mismatch_kl"
RETOKENISED = "retokenised_share"
STEPS = 3
"""So many steps in a row above a bound count; one alone may be a single odd completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftBounds:
    """Nats per token, or a share of samples. ``stop`` None: warn only."""

    warn: float
    stop: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What a run's last steps come to, in the words of a condition."""

    level: Literal["none", "warn", "stop"]
    message: str


def judge_drift(recent: Sequence[Mapping[str, Any]], bounds: DriftBounds) -> Drift:
    """From the metrics of the last steps, oldest first. Steps without the metric (rows) never drift."""
    text = (
        "actors do not sample with the probabilities that the learner computes; compare engine version,"
        " dtype and sampling settings, or look with `rollout debug rollout-only`"
    )
    return _judge(recent, METRIC, bounds, "limits.mismatchKl", text)


def judge_retokenised(recent: Sequence[Mapping[str, Any]], bounds: DriftBounds) -> Drift:
    """The same of ``retokenised_share``."""
    text = (
        "texts of samples, encoded again, are other tokens than were sampled; training is on the sampled"
        " ones, but rewards and exports read texts: compare the model's tokenizer with the one it was"
        " trained with, and look at samples with `rollout runs samples`"
    )
    return _judge(recent, RETOKENISED, bounds, "limits.retokenised", text)


def _judge(
    recent: Sequence[Mapping[str, Any]], metric: str, bounds: DriftBounds, field: str, text: str
) -> Drift:
    last = [step.get(metric) for step in recent[-STEPS:]]
    known = [float(value) for value in last if isinstance(value, int | float)]
    if len(known) < STEPS:
        return Drift(level="none", message="")
    least, shown = min(known), ", ".join(f"{value:.3g}" for value in known)
    said = f"{metric} was {shown} in the last {STEPS} steps, above {field}"
    if bounds.stop is not None and least > bounds.stop:
        return Drift(level="stop", message=f"{said}Stop ({bounds.stop:g}): {text}")
    if least > bounds.warn:
        return Drift(level="warn", message=f"{said}Warn ({bounds.warn:g}): {text}")
    return Drift(level="none", message="")
