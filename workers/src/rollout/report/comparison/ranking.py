"""Which of several runs did best, by one measure, and which of them the measurement can tell apart.

Pure. A rank by an evaluation compares its last value; runs whose 95 % intervals overlap the best one's
are not told apart from it. The number that chose a winner flatters it: on the report split too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rollout.errors import SpecError
from rollout.report.data import WINDOW, ReportInput, by_evaluation

HELD_OUT = "eval_"
"""How metrics of steps begin that were measured on rows held out."""
LOWER_IS_BETTER = ("loss", "_loss", "_kl", "seconds")
"""Endings of metrics of which less is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What runs are ranked by: an evaluation's metric, or (``split`` empty) a metric of steps."""

    metric: str
    evaluation: str = ""
    split: str = ""

    @property
    def name(self) -> str:
        """As ``--by`` takes it."""
        return f"{self.evaluation}/{self.split}/{self.metric}" if self.split else self.metric

    @property
    def lower_is_better(self) -> bool:
        """Whether the smallest value wins."""
        return not self.split and self.metric.endswith(LOWER_IS_BETTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a run reached; of a metric of steps the mean of the last ones, without an interval."""

    value: float
    low: float | None = None
    high: float | None = None
    step: int | None = None


def choose_measure(runs: Sequence[ReportInput], wanted: str | None = None) -> Measure:
    """The measure that ``wanted`` names, else the first that all runs have, or at least one of them.

    In this order: accuracy of an evaluation on the selection split, on the report split; preference
    accuracy on rows held out; reward. Loss comes last: those of two algorithms do not compare.
    Raises SpecError that lists what there is.
    """
    by_run = [list(_measures(run)) for run in runs]
    known = list(dict.fromkeys(one for own in by_run for one in own))
    if wanted is not None:
        found = [one for one in known if wanted in _names(one)]
        if not found:
            names = ", ".join(one.name for one in known) or "none yet"
            raise SpecError(f"--by {wanted}: no run has this measure; there are: {names}")
        return found[0]
    shared = [one for one in known if all(one in own for own in by_run)]
    for one in (*_preferred(shared), *_preferred(known)):
        return one
    return Measure(metric="loss")


def _preferred(known: Sequence[Measure]) -> Iterator[Measure]:
    preferences = _is(f"{HELD_OUT}preference_accuracy")
    for preferred in (_is_selection_accuracy, _is_accuracy, preferences, _is("reward")):
        yield from filter(preferred, known)


def _measures(run: ReportInput) -> Iterator[Measure]:
    for name, split, metric in by_evaluation(run.evaluations):
        yield Measure(metric=metric, evaluation=name, split=split)
    known = {name: value for step in run.steps for name, value in step.items()}
    for metric, value in known.items():
        if isinstance(value, int | float) and metric not in {"step", "lineage", "committed_at"}:
            yield Measure(metric=metric)


def _names(one: Measure) -> set[str]:
    if not one.split:
        return {one.metric}
    short = {one.evaluation, one.metric} if one.metric == "accuracy" else set()
    return {one.name, f"{one.evaluation}/{one.metric}", *short}


def _is_selection_accuracy(one: Measure) -> bool:
    return one.split == "selection" and one.metric == "accuracy"


def _is_accuracy(one: Measure) -> bool:
    return bool(one.split) and one.metric == "accuracy"


def _is(metric: str) -> Callable[[Measure], bool]:
    return lambda one: not one.split and one.metric == metric


def stand(run: ReportInput, measure: Measure) -> Standing | None:
    """What a run reached by this measure; None when it has none."""
    if measure.split:
        key = (measure.evaluation, measure.split, measure.metric)
        rows = by_evaluation(run.evaluations).get(key)
        if not rows:
            return None
        last = rows[-1]
        return Standing(value=last["value"], low=last["low"], high=last["high"], step=last["step"])
    found = [step for step in run.steps if _finite(step, measure.metric)]
    if not found:
        return None
    # What is measured on rows held out is no noise of a batch: its last value counts alone.
    last = found[-1:] if measure.metric.startswith(HELD_OUT) else found[-WINDOW:]
    return Standing(value=fmean(step[measure.metric] for step in last), step=last[-1]["step"])


def _finite(step: Mapping[str, Any], metric: str) -> bool:
    value = step.get(metric)
    return isinstance(value, int | float) and math.isfinite(value)


def rank(standings: Sequence[Standing | None], measure: Measure) -> list[int]:
    """Places of runs from best to worst, those without a value last; of equals the first given."""
    sign = 1.0 if measure.lower_is_better else -1.0

    def key(index: int) -> tuple[bool, float]:
        standing = standings[index]
        return (True, 0.0) if standing is None else (False, sign * standing.value)

    return sorted(range(len(standings)), key=key)


def told_apart(best: Standing | None, other: Standing | None) -> bool | None:
    """Whether two intervals do not overlap; None where there are no intervals to say it by."""
    if best is None or other is None or best.low is None or other.low is None:
        return None
    assert best.high is not None
    assert other.high is not None
    return best.low > other.high or other.low > best.high
