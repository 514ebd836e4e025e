"""One run, what is there, and the time: what to do and what to say. Pure; calling it twice changes nothing.

The status is written after the children, so that what it says has been done; an ending is written
before the pods go, because they are its evidence.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rollout_api.conditions import ConditionType, Reason
from rollout_operator.controller.conditions import ConditionUpdate, no, yes
from rollout_operator.controller.queue import BACKOFF_SECONDS_MAX
from rollout_operator.controller.times import parse_time, render_time
from rollout_operator.errors import RecordFormatUnknown, RecordUnverified
from rollout_operator.run.plan.attempts import (
    current_attempt,
    find_overtaken,
    find_record,
    has_pods,
    is_finished,
    lives_unread,
)
from rollout_operator.run.plan.children import earliest, plan_desired, until
from rollout_operator.run.plan.cleanup import plan_finished
from rollout_operator.run.plan.learner_group import Group, find_condition, observe_group
from rollout_operator.run.plan.model import (
    Blocked,
    Ending,
    Observed,
    Plan,
)
from rollout_operator.run.plan.phases import (
    Phase,
    as_ended,
    coordinator_ready,
    has_role,
    lost_node,
    plan_running,
    plan_suspension,
)
from rollout_operator.run.plan.queueing import (
    admitted_condition,
    await_quota,
    kept_suspension,
    lost_quota,
    plan_step,
    refused_condition,
)
from rollout_operator.run.plan.saving.parting import (
    NOTHING,
    Parting,
    orders,
    plan_last,
    tell_parting,
)
from rollout_operator.run.plan.saving.schedules import (
    SchedulesPlan,
    plan_drops,
    plan_schedules,
)
from rollout_operator.run.plan.status.conditions import (
    actor_selector,
    actors_condition,
    aimed,
    build_role_status,
    learner_condition,
    reported,
    state_of,
)
from rollout_operator.run.plan.status.finish import finish_plan
from rollout_operator.run.plan.suspended import BY_SPEC, EVICTED, plan_suspended, seconds_so_far
from rollout_operator.run.plan.termination import deadlines, find_ending
from rollout_operator.run.plan.troubles import find_trouble
from rollout_operator.signing import RECORD_FORMAT

LOOK_SHARE = 0.1
"""Who mends what a run has waited for waits so much longer at most, and no longer than for work that fails."""


def plan_run(observed: Observed, now: datetime) -> Plan:
    """The next step of one run."""
    if is_finished(observed):
        return replace(plan_finished(observed, now), drops=plan_drops(observed))
    attempt = current_attempt(observed)
    record = find_record(observed, attempt)
    if (apart := _plan_apart(observed, attempt, now)) is not None:
        return apart
    if observed.spec is None or (record is None and observed.gate and not observed.suspend):
        return _plan_refused(observed, observed.gate, now, alive=record is not None)
    if observed.suspend:
        return plan_suspended(observed, attempt, BY_SPEC, now)
    if record is not None and (lost := lost_quota(observed)):
        return plan_suspended(observed, attempt, replace(EVICTED, message=lost.message), now)
    if record is None and (queued := await_quota(observed)):
        return _plan_refused(observed, queued, now)
    return _plan_attempt(observed, attempt, now)


def _plan_attempt(observed: Observed, attempt: int, now: datetime) -> Plan:
    """One that may go on: it runs, or ends."""
    group = observe_group(observed, attempt)
    ending = find_ending(observed, group, attempt, now)
    if ending is None:
        return _plan_running(observed, group, attempt, now)
    parting = plan_last(observed, attempt, now) if ending.succeeded else NOTHING
    if parting.waits:
        return _plan_running(observed, group, attempt, now, parting)
    return _plan_ending(observed, ending, attempt, now, parting)


# -- a run that may not start ---------------------------------------------------------------------


def _plan_refused(
    observed: Observed, gate: Blocked | None, now: datetime, *, alive: bool = False
) -> Plan:
    """Say what stands in the way; what already lives is left as it is."""
    gate = observed.blocked or gate
    gate = gate or Blocked(reason=Reason.PENDING, message="not looked at yet", stalled=False)
    kept = [] if alive else kept_suspension(observed)
    aspects = [
        no(ConditionType.READY, gate.reason, gate.message),
        *refused_condition(gate),
        *kept,
        state_of(gate),
    ]
    step = plan_step(observed, alive=alive)
    plan = Plan(quota=step, requeue_seconds=_again_seconds(observed, gate, now))
    return finish_plan(observed, plan, aspects, now, keep_counts=True)


def _again_seconds(observed: Observed, gate: Blocked, now: datetime) -> float:
    """When to look at what stands in the way: the longer it has, the seldomer, as for work that fails."""
    before = find_condition(observed, "Ready")
    if before is None or before.status == "True":
        return gate.retry_seconds
    stood = (now - parse_time(before.last_transition_time)).total_seconds()
    return max(gate.retry_seconds, min(BACKOFF_SECONDS_MAX, LOOK_SHARE * stood))


def _plan_apart(observed: Observed, attempt: int, now: datetime) -> Plan | None:
    """Of an attempt that may have pods and has no record to go by; None for all others."""
    if lives_unread(observed):
        return _plan_unread(observed, attempt, now)
    if find_overtaken(observed) and has_pods(observed) and not lost_quota(observed):
        return _plan_overtaken(observed, now)
    return None


# -- a run whose record is not read ---------------------------------------------------------------


def _plan_unread(observed: Observed, attempt: int, now: datetime) -> Plan:
    """Pods go on, and go when they are told to; nothing is made until a person has it begin anew."""
    if observed.suspend:
        return plan_suspended(observed, attempt, BY_SPEC, now)
    if lost := lost_quota(observed):
        return plan_suspended(observed, attempt, replace(EVICTED, message=lost.message), now)
    group = observe_group(observed, attempt) if observed.spec is not None else None
    if observed.spec is not None and (ending := find_ending(observed, group, attempt, now)):
        return _plan_ending(observed, ending, attempt, now)
    return _plan_refused(observed, _why_unread(observed), now, alive=True)


def _why_unread(observed: Observed) -> Blocked:
    """A record of ours is named before one that may be anybody's."""
    if observed.unread:
        record = observed.unread[0]
        error: Exception = RecordFormatUnknown(record.name, record.format, RECORD_FORMAT)
        reason = Reason.RECORD_FORMAT_UNKNOWN
    else:
        error, reason = RecordUnverified(observed.unverified[0]), Reason.RECORD_UNVERIFIED
    return Blocked(reason=reason, message=str(error), retry_seconds=120.0)


# -- an attempt that the run does not go on with -----------------------------------------------------

EDITED = (
    "the spec was edited, or a suspension taken back: the attempt's pods go, and it begins anew"
)
LOST = (
    "the record of run attempt {} was deleted, and what it would be made from is not what it was:"
    " the attempt's pods go, and it begins anew"
)


def _plan_overtaken(observed: Observed, now: datetime) -> Plan:
    """Its pods go as in a suspension; then the spec as it is now is rendered as another attempt."""
    attempt = find_overtaken(observed)
    phase = plan_suspension(observed, attempt, now)
    words = LOST.format(attempt) if observed.record_lost else EDITED
    aspects = [
        no(ConditionType.READY, Reason.DRAINING, words),
        yes(ConditionType.RECONCILING, Reason.DRAINING, words),
        *kept_suspension(observed),
    ]
    plan = Plan(
        lower=phase.live,
        stop_coordinator=phase.cutting,
        requeue_seconds=until(phase.due, now),
    )
    return finish_plan(observed, plan, aspects, now, keep_counts=True)


# -- ends -----------------------------------------------------------------------------------------


def _plan_ending(
    observed: Observed, ending: Ending, attempt: int, now: datetime, parting: Parting = NOTHING
) -> Plan:
    """Say how it ended and with which pods; they go once that is written."""
    terminal = Reason.SUCCEEDED if ending.succeeded else Reason.FAILED
    as_jobs_say = ConditionType.COMPLETE if ending.succeeded else ConditionType.FAILED
    aspects = [
        ConditionUpdate(
            type=ConditionType.READY,
            holds=ending.succeeded,
            reason=ending.reason,
            message=ending.message,
        ),
        yes(ConditionType.FINISHED, terminal, ending.message),
        yes(as_jobs_say, ending.reason, ending.message),
        *([] if ending.succeeded else [yes(ConditionType.STALLED, ending.reason, ending.message)]),
        *reported(observed.status.progress, attempt),
        *([] if parting.aspect is None else [parting.aspect]),
    ]
    unblocked = replace(observed, blocked=None)  # nothing is written now that could be refused
    return finish_plan(
        unblocked,
        Plan(requeue_seconds=0.0),
        aspects,
        now,
        live=aimed(unblocked, as_ended(unblocked)),
        attempt=attempt,
        completionTime=render_time(now),
        **tell_parting(observed, parting),
    )


# -- running --------------------------------------------------------------------------------------


def _plan_running(
    observed: Observed,
    group: Group | None,
    attempt: int,
    now: datetime,
    parting: Parting = NOTHING,
) -> Plan:
    """``parting``: the work is done, and waits for its last snapshot."""
    record = find_record(observed, attempt)
    phase = plan_running(observed, group, attempt, now)
    wanted = plan_desired(observed, record, phase, attempt)
    started = observed.status.attempt == attempt and observed.status.start_time is not None
    ready = coordinator_ready(observed, attempt)
    settings = started and ready and observed.generation > observed.status.settings_generation
    lost, lost_due = lost_node(observed, now)
    aspects = _running_aspects(observed, group, phase, attempt, lost)
    saves = _plan_saves(observed, parting, now)
    if parting.waits:
        waits = (Reason.SAVING, parting.waits)
        told = [no(ConditionType.READY, *waits), yes(ConditionType.RECONCILING, *waits)]
        aspects = [one for one in aspects if one.type not in _STATES] + told
    aspects += saves.aspects
    wake = earliest(phase.due, lost_due, saves.due, *(due for due, _ in deadlines(observed)))
    rendered = record.generation if record is not None else observed.generation
    settled = observed.status.settings_generation if started else rendered
    before = observed.status.active_seconds if started else seconds_so_far(observed, now)
    plan = Plan(
        wanted=wanted,
        send_settings=settings and observed.coordinator_reachable,
        makes=saves.makes,
        drops=saves.drops,
        quota=plan_step(observed, alive=True, ready=_all_ready(observed, group, phase, attempt)),
        requeue_seconds=until(wake, now),
    )
    return finish_plan(
        observed,
        plan,
        aspects,
        now,
        live=aimed(observed, phase),
        attempt=attempt,
        startTime=observed.status.start_time if started else render_time(now),
        activeSeconds=before,
        settingsGeneration=observed.generation if plan.send_settings else settled,
        schedules=list(saves.told),
        selector=actor_selector(observed) if "actor" in phase.live else None,
        configuration=record.name if record is not None else observed.status.configuration,
    )


_STATES = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)


def _plan_saves(observed: Observed, parting: Parting, now: datetime) -> SchedulesPlan:
    """What its schedules ask for; at its end, the last snapshot alone."""
    if not parting.waits:
        return plan_schedules(observed, now)
    return SchedulesPlan(
        makes=orders(parting),
        told=tuple(tell_parting(observed, parting)["schedules"]),
        aspects=() if parting.aspect is None else (parting.aspect,),
        due=parting.due,
    )


def _all_ready(observed: Observed, group: Group | None, phase: Phase, attempt: int) -> bool:
    """Whether every pod that shall run does: what a queue calls PodsReady."""
    counts = build_role_status(observed, "actor", phase.live, attempt) or {}
    actors = counts.get("ready", 0) >= counts.get("desired", 0)
    released = not has_role(observed, "actor") or counts.get("desired", 0) > 0
    learner = learner_condition(observed, group, phase.live).holds is True
    return coordinator_ready(observed, attempt) and learner and actors and released


def _running_aspects(
    observed: Observed, group: Group | None, phase: Phase, attempt: int, lost: str
) -> list[ConditionUpdate]:
    counts = build_role_status(observed, "actor", aimed(observed, phase), attempt)
    actors, learner = (
        actors_condition(observed, counts),
        learner_condition(observed, group, phase.live),
    )
    some = not phase.live.get("actor") or bool(counts and counts["ready"])
    up = coordinator_ready(observed, attempt) and learner.holds and some
    trouble = find_trouble(observed, phase, attempt, lost)
    aspects = [
        admitted_condition(observed),
        actors,
        learner,
        *reported(observed.status.progress, attempt),
    ]
    if trouble is not None:
        return [
            *aspects,
            no(ConditionType.READY, trouble.reason, trouble.message),
            state_of(trouble),
        ]
    if up:
        return [*aspects, yes(ConditionType.READY, Reason.RUNNING, "the work goes on")]
    message = _describe_start(observed, learner, actors, attempt)
    return [
        *aspects,
        no(ConditionType.READY, Reason.STARTING, message),
        yes(ConditionType.RECONCILING, Reason.STARTING, message),
    ]


def _describe_start(
    observed: Observed, learner: ConditionUpdate, actors: ConditionUpdate, attempt: int
) -> str:
    if not coordinator_ready(observed, attempt):
        return "waits for the coordinator"
    return f"waits for the learner: {learner.message}" if not learner.holds else actors.message
