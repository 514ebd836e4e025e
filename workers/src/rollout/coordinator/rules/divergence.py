"""Does the reward still mean what it is meant to? It may warn or stop, never correct.

A policy that finds a way around its reward (a judge, a reward model, a pattern) is paid more and more while what was really
wanted gets worse. The evaluation that selects snapshots is on rows that nobody trains on: where its interval lies wholly
below that of the best version so far, and the mean reward of training is higher than it was there, the two have parted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollout.coordinator.plan import EvaluationPlan
from rollout.coordinator.rules.evaluation import EvaluationResult, metric_low, metric_value

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
    """What to say where the last result and the best one before it have parted."""
    if len(results) < 2:
        return ""
    *before, last = results
    best = max(before, key=lambda one: _or_lowest(metric_value(one.summary, plan.metric)))
    rewards = [float(one.summary[TRAIN_REWARD]) for one in (best, last)]
    if not (
        rewards[1] > rewards[0] and _high(last, plan.metric) < metric_low(best.summary, plan.metric)
    ):
        return ""
    values = [metric_value(one.summary, plan.metric) for one in (best, last)]
    return (
        f"from step {best.step} to {last.step} the training reward rose from {rewards[0]:.4g} to {rewards[1]:.4g} while"
        f" {plan.metric} of {plan.name} fell from {values[0]:.4g} to {values[1]:.4g}: the policy may have found a way"
        " around its reward; look at samples with `rollout runs samples`, and take the snapshot Best"
    )


def _high(result: EvaluationResult, metric: str) -> float:
    found = result.summary.get(metric)
    if isinstance(found, Mapping) and isinstance(found.get("high"), int | float):
        return float(found["high"])
    return metric_value(result.summary, metric)


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value
