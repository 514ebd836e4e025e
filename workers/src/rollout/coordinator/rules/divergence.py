"""Does the reward still mean what it is meant to? It may warn or stop, never correct.

A policy that finds a way around its reward (a judge, a reward model, a pattern) is paid more and more while what was really
wanted gets worse. The evaluation that selects snapshots is on rows that nobody trains on: where it has fallen from the
best of its last ``WINDOW`` results by more than chance explains, and the mean reward of training is higher than it was
there, the two have parted.

Chance: of all runs whose policy stays as good as it was, at most ``FALSE_ALARMS`` are ever named, however long they are.
The n-th result may spend ``FALSE_ALARMS / (n (n - 1))`` of it (the sum over all n is the whole), divided by the results
that it is held against (Bonferroni). The difference of two shares has the deviation that their intervals give towards
each other (Newcombe 1998, method 10, for independent samples; prompts that are asked each time only make it smaller).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

from rollout.coordinator.plan import EvaluationPlan
from rollout.coordinator.rules.evaluation import EvaluationResult, metric_low, metric_value
from rollout.evaluations.statistics import Z_95

WINDOW = 10
"""Results of which the best is what the last of them is held against."""
FALSE_ALARMS = 0.005
"""Share of runs without any change that may be named, over all their looks; with few prompts it is up to twice as much."""
TRAIN_REWARD = "train_reward"
"""In the summary of a selecting evaluation: the mean reward of the steps up to its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """What the evaluations come to, in the words of a condition."""

    level: Literal["none", "warn", "stop"]
    message: str = ""


def mean_train_reward(recent: Sequence[Mapping[str, Any]], step: int) -> float | None:
    """Of the last steps that led to the version of ``step``; None where none of them is known."""
    known = [one.get("reward") for one in recent if one.get("step", 0) <= step]
    values = [float(value) for value in known if isinstance(value, int | float)]
    values = [value for value in values if math.isfinite(value)]
    return math.fsum(values) / len(values) if values else None


def judge_divergence(
    plans: Iterable[EvaluationPlan], results: Sequence[EvaluationResult], *, stops: bool
) -> Divergence:
    """From all results of the live chain."""
    for plan in plans:
        if not plan.selects:
            continue
        own = [
            one
            for one in results
            if (one.name, one.split) == (plan.name, plan.split) and TRAIN_REWARD in one.summary
        ]
        if message := _parted(plan, sorted(own, key=lambda one: (one.step, one.lineage))):
            return Divergence(level="stop" if stops else "warn", message=message)
    return Divergence(level="none")


def _parted(plan: EvaluationPlan, results: Sequence[EvaluationResult]) -> str:
    """What to say of the latest result that had parted from the best before it, where none has come back since."""
    for end in range(len(results), 1, -1):
        *before, last = results[max(0, end - WINDOW) : end]
        best = max(before, key=lambda one: _or_lowest(metric_value(one.summary, plan.metric)))
        if not _is_parted(best, last, plan.metric, least_deviations(end, len(before))):
            continue
        back = metric_low(best.summary, plan.metric)
        if not any(metric_value(one.summary, plan.metric) >= back for one in results[end:]):
            return _say(plan, best, last)
    return ""


def _is_parted(best: EvaluationResult, last: EvaluationResult, metric: str, least: float) -> bool:
    rose = float(last.summary[TRAIN_REWARD]) > float(best.summary[TRAIN_REWARD])
    return rose and _deviations(best, last, metric) > least


def _say(plan: EvaluationPlan, best: EvaluationResult, last: EvaluationResult) -> str:
    rewards = [float(one.summary[TRAIN_REWARD]) for one in (best, last)]
    values = [metric_value(one.summary, plan.metric) for one in (best, last)]
    return (
        f"from step {best.step} to {last.step} the training reward rose from {rewards[0]:.4g} to {rewards[1]:.4g} while"
        f" {plan.metric} of {plan.name} fell from {values[0]:.4g} to {values[1]:.4g}: the policy may have found a way"
        " around its reward; look at samples with `rollout runs samples`, and take the snapshot Best"
    )


def least_deviations(num_results: int, num_before: int) -> float:
    """Standard deviations by which the ``num_results``-th result must lie below one of ``num_before`` others to be no chance."""
    spent = FALSE_ALARMS / (num_results * (num_results - 1) * num_before)
    return NormalDist().inv_cdf(1 - spent)


def _deviations(best: EvaluationResult, last: EvaluationResult, metric: str) -> float:
    """By how many standard deviations the metric fell; 0 where an interval is not known."""
    fell = metric_value(best.summary, metric) - metric_value(last.summary, metric)
    down, up = _towards(best, metric, "low"), _towards(last, metric, "high")
    spread = math.hypot(down, up) / Z_95
    return fell / spread if spread > 0 and math.isfinite(fell) else 0.0


def _towards(result: EvaluationResult, metric: str, end: Literal["low", "high"]) -> float:
    """How far the interval reaches from its value to one end; NaN where there is none."""
    found = result.summary.get(metric)
    if not isinstance(found, Mapping) or not isinstance(found.get(end), int | float):
        return math.nan
    return abs(float(found[end]) - metric_value(result.summary, metric))


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value
