"""A run that has finished: its pods go, then what it leaves behind, and at last, when it asks for it, itself. Pure.

Its conditions stay as they were; what keeps it from being cleaned up is said beside them.

A create is bound to absence alone: a replica that stood still between its question and its create makes a child again of which
the leader has removed all. What is watched is seen, and removed once more. The Secret is not watched: it is asked for, the
seldomer the longer the run's time is over.
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
from rollout_operator.run.plan.model import REST_SECONDS, Observed, Plan
from rollout_operator.run.plan.phases import END, plan_down
from rollout_operator.run.plan.queueing import plan_step
from rollout_operator.run.plan.status.conditions import read_conditions
from rollout_operator.run.plan.status.finish import finish_plan

SEEK_SECONDS_MIN = 30.0
"""Between two questions for the Secret of a run whose time is over; then as long as it has been over."""


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
        left = _has_children(observed)
        seek = over and not left and now >= _seek_time(due, observed.secret_sought)
        plan = Plan(
            remove_children=left and over,
            seek_secret=seek,
            quota=plan_step(observed, alive=False, over=over),
            requeue_seconds=_again_seconds(observed, due, now, asks=seek or left),
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


def _seek_time(due: datetime | None, sought: datetime | None) -> datetime:
    """When to ask for the Secret of a run whose time is over since ``due``: it doubles its age from question to question."""
    assert due is not None
    if sought is None:
        return due
    return sought + max(timedelta(seconds=SEEK_SECONDS_MIN), sought - due)


def _again_seconds(
    observed: Observed, due: datetime | None, now: datetime, *, asks: bool
) -> float | None:
    """When to look again. All runs are looked at within REST_SECONDS: nobody wakes for a question that comes later."""
    if due is None or now < due:
        return until(due, now)
    again = until(_seek_time(due, now if asks else observed.secret_sought), now)
    return again if again is not None and again <= REST_SECONDS else None


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
