"""When evaluations run, which version is best, whether a gate holds. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.coordinator.plan import EvaluationPlan
from rollout.ledger.records import NewEvaluation, NewTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """A finished evaluation of one version."""

    name: str
    split: str
    lineage: int
    step: int
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best version so far, on the selecting evaluation."""

    result: EvaluationResult
    metric: str
    value: float


def plan_due(
    plans: Iterable[EvaluationPlan], step: int, *, finished: bool
) -> tuple[EvaluationPlan, ...]:
    """The evaluations that the version of ``step`` calls for; ``finished``: it is the last one."""
    return tuple(plan for plan in plans if _is_due(plan, step, finished=finished))


def _is_due(plan: EvaluationPlan, step: int, *, finished: bool) -> bool:
    if step == 0:
        return plan.at_start
    if finished and plan.at_end:
        return True
    return plan.every_steps is not None and step % plan.every_steps == 0


def build_evaluation(plan: EvaluationPlan, lineage: int, step: int) -> NewEvaluation:
    """One evaluation of one version: a task per prompt."""
    tasks = tuple(
        NewTask(
            task_id=name_task(plan.name, plan.split, lineage, step, position),
            kind="eval",
            ordinal=position,
            num_samples=plan.samples_per_prompt,
            evaluation=plan.name,
            split=plan.split,
            lineage=lineage,
            step=step,
        )
        for position in range(plan.num_prompts)
    )
    return NewEvaluation(name=plan.name, split=plan.split, lineage=lineage, step=step, tasks=tasks)


def name_task(name: str, split: str, lineage: int, step: int, position: int) -> str:
    """The id of one prompt's task."""
    return f"e/{name}/{split}/{lineage}-{step}/{position}"


def metric_value(summary: Mapping[str, Any], metric: str) -> float:
    """A metric's value: a number, or the ``value`` of an interval; NaN when it is not there."""
    found = summary.get(metric)
    if isinstance(found, Mapping):
        found = found.get("value")
    return float(found) if isinstance(found, (int, float)) else math.nan


def metric_low(summary: Mapping[str, Any], metric: str) -> float:
    """The low end of a metric's interval, or the metric itself when it has none."""
    found = summary.get(metric)
    if isinstance(found, Mapping) and isinstance(found.get("low"), (int, float)):
        return float(found["low"])
    return metric_value(summary, metric)


def choose_best(
    plans: Iterable[EvaluationPlan], results: Iterable[EvaluationResult]
) -> Best | None:
    """The version with the highest selecting metric; of equals the earliest."""
    selecting: dict[tuple[str, str], str] = {
        (plan.name, plan.split): plan.metric for plan in plans if plan.selects
    }
    best: Best | None = None
    ordered = sorted(results, key=lambda item: (item.step, item.lineage))
    for result in ordered:
        metric = selecting.get((result.name, result.split))
        if metric is None:
            continue
        value = metric_value(result.summary, metric)
        if not math.isnan(value) and (best is None or value > best.value):
            best = Best(result=result, metric=metric, value=value)
    return best


def plan_final_reports(
    plans: Iterable[EvaluationPlan],
    best: Best | None,
    seen: Iterable[tuple[str, str, int, int]],
) -> tuple[NewEvaluation, ...]:
    """At the end the best version is also measured where nothing was chosen: on the report split."""
    if best is None:
        return ()
    step, lineage, known = best.result.step, best.result.lineage, set(seen)
    reports = (plan for plan in plans if plan.split == "report" and plan.at_end)
    return tuple(
        build_evaluation(plan, lineage, step)
        for plan in reports
        if (plan.name, plan.split, lineage, step) not in known
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """A gate that did not hold."""

    fails: bool
    message: str


def check_gates(
    plans: Iterable[EvaluationPlan], results: Sequence[EvaluationResult], step: int
) -> tuple[GateResult, ...]:
    """The gates that the last version misses."""
    missed: list[GateResult] = []
    for plan in plans:
        found = [
            result
            for result in results
            if (result.name, result.split, result.step) == (plan.name, plan.split, step)
        ]
        if plan.gate is None or not found:
            continue
        low = metric_low(found[-1].summary, plan.gate.metric)
        if not low >= plan.gate.lower_bound:
            text = f"{plan.name}: low end of {plan.gate.metric} is {low:.4g}"
            missed.append(
                GateResult(
                    fails=plan.gate.fails,
                    message=f"{text}, the gate wants {plan.gate.lower_bound:g}",
                )
            )
    return tuple(missed)
