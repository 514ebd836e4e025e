"""A run that is suspended, or loses its quota: its pods go, and what it says until they have gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rollout_api.conditions import ConditionType, Reason
from rollout_operator.controller.conditions import ConditionUpdate, Status, no, yes
from rollout_operator.controller.times import parse_time
from rollout_operator.run.plan.attempts import find_record, has_pods, lives_unread
from rollout_operator.run.plan.children import plan_desired, until
from rollout_operator.run.plan.model import Blocked, Observed, Plan
from rollout_operator.run.plan.phases import Phase, at_rest, plan_suspension
from rollout_operator.run.plan.queueing import plan_step
from rollout_operator.run.plan.saving.parting import (
    NOTHING,
    Parting,
    is_coordinators_turn,
    orders,
    plan_parting,
    stay,
    tell_parting,
)
from rollout_operator.run.plan.saving.schedules import SUSPEND, plan_drops
from rollout_operator.run.plan.status.conditions import state_of
from rollout_operator.run.plan.status.finish import finish_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionCause:
    """Why the pods go, and what is said once they are gone."""

    reason: Reason
    message: str


BY_SPEC = SuspensionCause(reason=Reason.SUSPENDED, message="spec.suspend is true")
EVICTED = SuspensionCause(reason=Reason.EVICTED, message="the queue took the quota back")


def plan_suspended(observed: Observed, attempt: int, why: SuspensionCause, now: datetime) -> Plan:
    """The cut, then the pods in their order; the last snapshot before the coordinator goes, where one is asked for."""
    record = find_record(observed, attempt)
    known = record is not None or lives_unread(observed)
    alive = known or has_pods(observed)
    phase = plan_suspension(observed, attempt, now) if alive else at_rest(observed)
    goes = is_coordinators_turn(phase)
    last = attempt if known else observed.status.attempt
    parting = plan_parting(observed, SUSPEND, last, now) if goes else NOTHING
    phase = stay(observed, phase, parting)
    wanted = plan_desired(observed, record, phase, attempt) if record is not None else None
    aspects = _stopping_aspects(phase, why, observed.blocked, parting)
    gives_back = alive and phase.gone and observed.quota is not None
    extra: Status = {"attempt": last, **tell_parting(observed, parting)}
    if phase.gone:
        extra |= {"activeSeconds": seconds_so_far(observed, now), "startTime": None}
    return finish_plan(
        observed,
        Plan(
            wanted=wanted,
            lower=phase.live if alive and record is None else {},
            stop_coordinator=phase.cutting,
            makes=orders(parting),
            drops=plan_drops(observed),
            quota=plan_step(observed, alive=alive),
            requeue_seconds=0.0 if gives_back else until(phase.due, now),
        ),
        aspects,
        now,
        live=phase.live,
        **extra,
    )


def _stopping_aspects(
    phase: Phase, why: SuspensionCause, blocked: Blocked | None, parting: Parting
) -> list[ConditionUpdate]:
    """Of pods that go, and of none that is left; an eviction ends in the queue again."""
    evicted = why.reason is Reason.EVICTED
    lost = [no(ConditionType.ADMITTED, why.reason, why.message)] if evicted else []
    lost += [parting.aspect] if parting.aspect is not None else []
    if parting.waits:
        waits = (Reason.SAVING, parting.waits)
        return [no(ConditionType.READY, *waits), yes(ConditionType.RECONCILING, *waits), *lost]
    if not phase.gone:
        words = "the coordinator makes the cut" if phase.cutting else "pods are going"
        return [
            no(ConditionType.READY, Reason.DRAINING, words),
            state_of(blocked)
            if blocked
            else yes(ConditionType.RECONCILING, Reason.DRAINING, words),
            *lost,
        ]
    going = [yes(ConditionType.RECONCILING, why.reason, why.message)] if evicted else []
    return [
        no(ConditionType.READY, why.reason, why.message),
        yes(ConditionType.SUSPENDED, why.reason, f"{why.message} and no pod is left"),
        *lost,
        *going,
    ]


def seconds_so_far(observed: Observed, now: datetime) -> int:
    """Running time of all attempts until now, in seconds."""
    status = observed.status
    if status.start_time is None:
        return status.active_seconds
    return status.active_seconds + int((now - parse_time(status.start_time)).total_seconds())
