"""A run's progress as ``status.progress`` has it: asked for by the operator, or written by ourselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rollout.coordinator.context import RunContext
from rollout.coordinator.duties.model_export import BEST, LATEST, is_handing
from rollout.coordinator.rules.evaluation import choose_best
from rollout.coordinator.status.overview import (
    actors_wanted,
    bottleneck,
    conditions,
    count_rows,
    describe_group,
    dispositions,
    read_metric,
)
from rollout.models.packed import PackedModel
from rollout.protocol.status import Condition
from rollout_api.conditions import Reason
from rollout_api.v1alpha1.run_status import (
    Dispositions,
    LearnerGroup,
    Outcome,
    Progress,
    ReportedCondition,
    RowCounts,
    SnapshotSummary,
    Stuck,
)

DIGITS = 6
"""Figures of a number that people read."""
MESSAGE_CHARACTERS_MAX = 4096


def describe_progress(run: RunContext) -> Progress:
    """How far the run is, what must be known of it, and how it ended."""
    state, last = run.state, run.state.recent[-1] if run.state.recent else {}
    return Progress(
        attempt=run.plan.attempt,
        step=state.step,
        max_steps=run.plan.train.steps_total,
        policy_version=0 if state.version is None else state.version.step,
        lineage=state.lineage,
        reward_mean=_rounded(read_metric(last, "reward")),
        reward_price=_price(last),
        tokens_per_second=_rounded(read_metric(last, "tokens_per_second")),
        bottleneck=bottleneck(run),
        mismatch_kl=_rounded(read_metric(last, "mismatch_kl")),
        staleness=_rounded(read_metric(last, "staleness_mean")),
        dispositions=_dispositions(run),
        rows=_rows(run),
        usage=run.usage,
        conditions=tuple(_condition(one) for one in (*conditions(run), *_snapshotted(run))),
        actors_wanted=actors_wanted(run),
        group=_group(run),
        stuck=_stuck(run),
        last_snapshot=_last_snapshot(run),
        best=_best(run),
        outcome=_outcome(run),
    )


def _dispositions(run: RunContext) -> Dispositions:
    known = Dispositions.model_fields
    return Dispositions(**{name: n for name, n in dispositions(run).items() if name in known})


def _price(last: Mapping[str, Any]) -> float | None:
    """What the rewards of a step cost together; None where nothing was priced."""
    costs = last.get("reward_costs") or {}
    priced = [value for name, value in costs.items() if name.endswith("/price")]
    return _rounded(math.fsum(priced)) if any(priced) else None


def _rows(run: RunContext) -> RowCounts | None:
    found = count_rows(run)
    if found is None:
        return None
    left = found.seconds_left
    return RowCounts(
        total=found.num_rows,
        done=found.num_done,
        failed=found.num_failed,
        tokens=found.num_tokens,
        seconds_left=None if left is None else round(left),
    )


def _condition(found: Condition) -> ReportedCondition:
    return ReportedCondition.model_validate(
        {
            "type": found.type,
            "status": str(found.status),
            "reason": str(found.reason),
            "message": found.message[:MESSAGE_CHARACTERS_MAX],
        }
    )


def _snapshotted(run: RunContext) -> tuple[Condition, ...]:
    """Whether a restart would find an anchor; until then the learner's pods are kept from eviction."""
    if not run.plan.trains:
        return ()
    anchor = run.state.anchors[-1] if run.state.anchors else None
    said = Condition(
        type="Snapshotted",
        status=anchor is not None,
        reason=Reason.SNAPSHOT_TAKEN if anchor else Reason.NO_SNAPSHOT_YET,
        message=f"step {anchor.step} is durable" if anchor else "the first anchor is still to come",
    )
    return (said,)


def _group(run: RunContext) -> LearnerGroup | None:
    found = describe_group(run)
    if found is None:
        return None
    message = found.message[:MESSAGE_CHARACTERS_MAX]
    return LearnerGroup(incarnation=found.incarnation, stage=found.stage, message=message)


def _stuck(run: RunContext) -> Stuck | None:
    found = run.stuck
    if found is None:
        return None
    message = found.message[:MESSAGE_CHARACTERS_MAX]
    return Stuck(worker=found.worker or None, message=message, time=_render(found.at))


def _last_snapshot(run: RunContext) -> SnapshotSummary | None:
    if not run.state.anchors:
        return None
    anchor, place = run.state.anchors[-1], run.plan.snapshots.weights_place
    made = datetime.fromtimestamp(anchor.created_at, UTC) if anchor.created_at else None
    return SnapshotSummary(
        name=anchor.name,
        step=anchor.step,
        weights_uri=str(PackedModel(place=place, digest=anchor.version.object)) if place else None,
        weights_digest=anchor.version.digest if place else None,
        time=_render(made) if made is not None else None,
        model_uri=(run.handed or {}).get(LATEST),
    )


def _best(run: RunContext) -> SnapshotSummary | None:
    best = choose_best(run.plan.evaluations, run.state.results())
    if best is None:
        return None
    return SnapshotSummary(
        name=f"step-{best.result.step:06d}",
        step=best.result.step,
        metric=best.metric,
        value=float(f"{best.value:.{DIGITS}g}"),
        model_uri=(run.handed or {}).get(BEST),
    )


def _outcome(run: RunContext) -> Outcome | None:
    found = run.state.outcome
    if found is None or is_handing(run) or not run.usage_settled:
        return None
    message = found.message[:MESSAGE_CHARACTERS_MAX]
    return Outcome.model_validate({"kind": found.kind, "reason": found.reason, "message": message})


def build_progress(run: RunContext) -> bytes:
    """The same as JSON, with the time."""
    return stamp(describe_progress(run)).model_dump_json(exclude_none=True).encode()


def stamp(progress: Progress) -> Progress:
    """Progress with the time of writing."""
    return progress.model_copy(update={"update_time": _render(datetime.now(UTC))})


def _render(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")
