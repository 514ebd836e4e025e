"""A run that has finished: its pods go, then what it leaves behind, and at last, when it asks for it, itself. Pure.

Its conditions stay as they were; what keeps it from being cleaned up is said beside them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from rollout_api.conditions import ConditionType, Reason
from rollout_operator.cache.children import Child
from rollout_operator.controller.conditions import ConditionUpdate, no
from rollout_operator.controller.times import parse_time
from rollout_operator.run.plan.attempts import find_record
from rollout_operator.run.plan.children import earliest, plan_desired, until
from rollout_operator.run.plan.model import Observed, Plan
from rollout_operator.run.plan.phases import END, plan_down
from rollout_operator.run.plan.queueing import plan_step
from rollout_operator.run.plan.status.conditions import read_conditions
from rollout_operator.run.plan.status.finish import finish_plan


def plan_finished(observed: Observed, now: datetime) -> Plan:
    """Workers go, then the coordinator; what is left goes when its time is over, the object last."""
    attempt = observed.status.attempt
    record = find_record(observed, attempt)
    phase = plan_down(observed, END, now)
    due = _removal_time(observed)
    over = due is not None and now >= due
    if not phase.gone and not _may_make_again(record, over=over):
        plan = Plan(lower=phase.live, requeue_seconds=until(phase.due, now))
        return finish_plan(observed, plan, _frozen(observed, over=over), now, frozen=True)
    if record is None or (over and phase.gone):
        plan = Plan(
            remove_children=_has_children(observed) and over,
            quota=plan_step(observed, alive=False, over=over),
            requeue_seconds=None if over else until(due, now),
        )
        if over and _nothing_left(observed) and _deletes_run(observed):
            plan = replace(plan, delete_run=not observed.tracker)
        said = _frozen(observed, over=over)
        return finish_plan(observed, plan, said, now, frozen=True)
    wanted = plan_desired(observed, record, phase, attempt)
    wake = earliest(phase.due, due if due is not None and now < due else None)
    step = plan_step(observed, alive=False) if phase.gone else None
    plan = Plan(wanted=wanted, quota=step, requeue_seconds=until(wake, now))
    return finish_plan(observed, plan, _frozen(observed, over=over), now, frozen=True)


def _may_make_again(record: Child | None, *, over: bool) -> bool:
    """Not after its time: another replica, which has seen the pods go, may be removing what is left."""
    return record is not None and not over


def _removal_time(observed: Observed) -> datetime | None:
    spec, completed = observed.spec, observed.status.completion_time
    if spec is None or completed is None or spec.limits.ttl_seconds_after_finished is None:
        return None
    return parse_time(completed) + timedelta(seconds=spec.limits.ttl_seconds_after_finished)


def _deletes_run(observed: Observed) -> bool:
    """Whether the run asks for its object to be deleted in the end."""
    return observed.spec is not None and observed.spec.limits.ttl_action == "DeleteRun"


def _has_children(observed: Observed) -> bool:
    """Read or not."""
    return bool(observed.children or observed.unverified or observed.unread)


def _nothing_left(observed: Observed) -> bool:
    return not _has_children(observed) and not observed.pods and observed.quota is None


def _frozen(observed: Observed, *, over: bool) -> list[ConditionUpdate]:
    """The conditions of a finished run, as they are, and what cannot be cleaned up."""
    kept = read_conditions(observed.status.conditions, Reason.FAILED)
    kind = ConditionType.CLEANED_UP
    aspects = [one for one in kept if one.type is not kind]
    if observed.blocked is not None:
        return [*aspects, no(kind, observed.blocked.reason, observed.blocked.message)]
    if over and observed.tracker and _deletes_run(observed):
        message = f"the run is not deleted: {observed.tracker} and would make it again"
        return [*aspects, no(kind, Reason.MANAGED_BY_GIT_OPS, message)]
    return aspects
