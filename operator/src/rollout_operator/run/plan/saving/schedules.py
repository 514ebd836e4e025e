"""Snapshots that a run's schedules ask for: which is due, which are kept, and what is said of them. Pure.

How far a schedule is stands in the run's status; which snapshots it has made is known by their labels. A name says for
which time or step a snapshot is, so that whoever makes it twice finds it made. One of a schedule is made at a time, of
several that were missed the newest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rollout_api.conditions import ConditionType, Reason
from rollout_api.fields.cron import find_zone, last_time, next_time, parse_cron
from rollout_api.names import scheduled_name
from rollout_api.v1alpha1.operations import SnapshotSchedule
from rollout_api.v1alpha1.run_status import ScheduleStatus
from rollout_operator.controller.conditions import ConditionUpdate, Status, no, yes
from rollout_operator.controller.times import parse_time, render_time
from rollout_operator.run.plan.children import earliest
from rollout_operator.run.plan.model import Blocked, MadeSnapshot, Observed, SnapshotOrder
from rollout_operator.run.plan.preconditions.checks import NO_BUCKET, saves_itself

SUSPEND, END, BEST = "suspend", "end", "best"
"""Snapshots that a run makes when it is suspended, when it has ended well, and of its best version: no schedule has these names."""
KEPT = {SUSPEND: 3, END: 1, BEST: 1}
WHY = {
    SUSPEND: "spec.snapshots.onSuspend",
    END: "spec.snapshots.atEnd",
    BEST: "spec.snapshots.best",
}
PARTING_SECONDS = 600
"""How long a coordinator stays for one, and how long it may take."""
FAILED_KEPT = 1
"""Of those that have failed, the newest: it says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesPlan:
    """What to make and to delete, what the status says, and when to look again."""

    makes: tuple[SnapshotOrder, ...] = ()
    drops: tuple[MadeSnapshot, ...] = ()
    told: tuple[Status, ...] = ()
    aspects: tuple[ConditionUpdate, ...] = ()
    due: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One schedule. ``next_words``: when its next snapshot is due, for people."""

    told: Status
    order: SnapshotOrder | None = None
    due: datetime | None = None
    next_words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a snapshot would be for: ``mark`` in its name, ``words`` for people, ``told`` once it is acted on."""

    mark: int
    words: str
    told: Status


def plan_schedules(observed: Observed, now: datetime) -> SchedulesPlan:
    """Of a run at work."""
    spec = observed.spec
    others = tuple(_as_told(one) for one in observed.status.schedules if one.name in (SUSPEND, END))
    if spec is None or not saves_itself(spec):
        return SchedulesPlan(told=others)
    if (gate := observed.unsaved or find_gate(observed)) is not None:
        told = tuple(_as_told(one) for one in observed.status.schedules)
        kind, again = ConditionType.SNAPSHOTS_SCHEDULED, timedelta(seconds=gate.retry_seconds)
        return SchedulesPlan(
            told=told, aspects=(no(kind, gate.reason, gate.message),), due=now + again
        )
    turns = [_plan_one(observed, one, now) for one in spec.snapshots.schedules]
    turns += _plan_best(observed) if spec.snapshots.best else []
    return SchedulesPlan(
        makes=tuple(one.order for one in turns if one.order is not None),
        drops=plan_drops(observed),
        told=(*(one.told for one in turns), *others),
        aspects=(_describe(observed, turns),) if turns else (),
        due=earliest(*(one.due for one in turns)),
    )


def find_gate(observed: Observed) -> Blocked | None:
    """Why no snapshot is made of this run by itself."""
    assert observed.spec is not None
    storage = observed.spec.storage
    if storage is not None and storage.uri is not None:
        return None
    return Blocked(reason=Reason.NOT_SUPPORTED, message=NO_BUCKET, retry_seconds=3600.0)


# -- which are kept -----------------------------------------------------------------------------------


def plan_drops(observed: Observed) -> tuple[MadeSnapshot, ...]:
    """Those that are older than what a schedule keeps. Of a schedule that is no more everything stays."""
    if observed.spec is None or observed.unsaved is not None:
        return ()
    asked = observed.spec.snapshots
    own = {SUSPEND: asked.on_suspend, END: asked.at_end, BEST: asked.best}
    kept = {one.name: one.keep_last for one in asked.schedules}
    kept |= {name: KEPT[name] for name, wanted in own.items() if wanted}
    return tuple(
        one
        for schedule, keep_last in kept.items()
        for one in _surplus(_of_schedule(observed, schedule), keep_last)
    )


def _surplus(made: Iterable[MadeSnapshot], keep_last: int) -> list[MadeSnapshot]:
    """The oldest first, as they come; one that a person keeps (Retain) is not counted."""
    own = [one for one in made if not one.deleting and not one.retained]
    complete = [one for one in own if one.state == "Complete"]
    failed = [one for one in own if one.state == "Failed"]
    return [*complete[:-keep_last], *failed[:-FAILED_KEPT]]


def _of_schedule(observed: Observed, name: str) -> list[MadeSnapshot]:
    return [one for one in observed.snapshots if one.schedule == name]


# -- which is due -------------------------------------------------------------------------------------


def _plan_one(observed: Observed, schedule: SnapshotSchedule, now: datetime) -> Turn:
    known = next((one for one in observed.status.schedules if one.name == schedule.name), None)
    if schedule.cron is not None:
        return _plan_by_clock(observed, schedule, known, now)
    return _plan_by_steps(observed, schedule, known)


def _plan_by_clock(
    observed: Observed, schedule: SnapshotSchedule, known: ScheduleStatus | None, now: datetime
) -> Turn:
    """Of one that was not followed before, times from now on are meant."""
    assert schedule.cron is not None
    cron, zone = parse_cron(schedule.cron), find_zone(schedule.time_zone)
    due = next_time(cron, zone, now)
    words = f"next at {render_time(due)}" if due is not None else "never"
    if known is None or known.last_time is None:
        told = {"name": schedule.name, "lastTime": render_time(now)}
        return Turn(told=told, due=due, next_words=words)
    time = last_time(cron, zone, parse_time(known.last_time), now)
    if time is None:
        return Turn(told=_as_told(known), due=due, next_words=words)
    told = {**_as_told(known), "lastTime": render_time(time)}
    bound = schedule.starting_deadline_seconds
    if bound is not None and (now - time).total_seconds() > bound:
        return Turn(told=told, due=due, next_words=words)
    moment = Moment(mark=int(time.timestamp()) // 60, words=f"of {render_time(time)}", told=told)
    return _plan_moment(
        observed, schedule, known, moment, Turn(told=told, due=due, next_words=words)
    )


def _plan_by_steps(
    observed: Observed, schedule: SnapshotSchedule, known: ScheduleStatus | None
) -> Turn:
    """Of one that was not followed before, steps from the newest anchor on are meant."""
    every = schedule.every_steps
    assert every is not None
    step = (newest_anchor(observed) or 0) // every * every
    words = f"next at step {step + every}"
    if known is None or known.last_step is None:
        return Turn(told={"name": schedule.name, "lastStep": step}, next_words=words)
    if step <= known.last_step:
        return Turn(told=_as_told(known), next_words=words)
    told = {**_as_told(known), "lastStep": step}
    moment = Moment(mark=step, words=f"of step {step}", told=told)
    return _plan_moment(observed, schedule, known, moment, Turn(told=told, next_words=words))


def _plan_best(observed: Observed) -> list[Turn]:
    """Whenever another version is the best; nothing is told before the first."""
    known = next((one for one in observed.status.schedules if one.name == BEST), None)
    step = best_anchor(observed)
    if step is None or (known is not None and known.last_step == step):
        return (
            []
            if known is None
            else [Turn(told=_as_told(known), next_words="waits for a better version")]
        )
    known = known or ScheduleStatus.model_validate({"name": BEST})
    told = {**_as_told(known), "lastStep": step}
    moment = Moment(mark=step, words=f"of step {step}", told=told)
    schedule = SnapshotSchedule(name=BEST, every_steps=1, keep_last=KEPT[BEST])
    turn = _plan_moment(
        observed, schedule, known, moment, Turn(told=told, next_words="waits for a better version")
    )
    if turn.order is None:
        return [turn]
    return [replace(turn, order=replace(turn.order, description=describe(BEST), step=step))]


def best_anchor(observed: Observed) -> int | None:
    """The step of the best version, once an anchor is as new; None where there is none, or it is the model of the start."""
    progress, newest = observed.status.progress, newest_anchor(observed)
    best = (progress.best if progress is not None else None) or observed.status.best
    if best is None or newest is None or not 0 < best.step <= newest:
        return None
    return best.step


def describe(kind: str) -> str:
    """Why one is made that no schedule asks for, for people."""
    return (
        f"made by {WHY[kind]}, the newest is kept"
        if KEPT[kind] == 1
        else f"made by {WHY[kind]}, the newest {KEPT[kind]} are kept"
    )


def _plan_moment(
    observed: Observed,
    schedule: SnapshotSchedule,
    known: ScheduleStatus,
    moment: Moment,
    after: Turn,
) -> Turn:
    """What is due is made now, unless it is there, or has to wait: then nothing is said of it yet."""
    name = scheduled_name(observed.name, observed.uid, schedule.name, moment.mark)
    mine = _of_schedule(observed, schedule.name)
    told = {**moment.told, "lastSnapshot": name}
    if any(one.name == name for one in mine):
        return Turn(told=told, due=after.due, next_words=after.next_words)
    if any(one.state == "Active" and not one.deleting for one in mine):
        return Turn(told=_as_told(known), next_words="waits for the one before")
    if newest_anchor(observed) is None:
        return Turn(told=_as_told(known), next_words="waits for the first anchor")
    order = SnapshotOrder(
        name=name,
        schedule=schedule.name,
        description=f"schedule {schedule.name}, {moment.words}",
        deadline_seconds=schedule.deadline_seconds,
    )
    return Turn(told=told, order=order, due=after.due, next_words=after.next_words)


def newest_anchor(observed: Observed) -> int | None:
    """The step of the newest anchor that is known; None where there is none."""
    progress, last = observed.status.progress, observed.status.last_snapshot
    told = progress.last_snapshot if progress is not None else None
    found = told or last
    return found.step if found is not None else None


# -- what is said -------------------------------------------------------------------------------------


def _describe(observed: Observed, turns: list[Turn]) -> ConditionUpdate:
    kind = ConditionType.SNAPSHOTS_SCHEDULED
    if failures := [words for one in turns if (words := _failure(observed, one.told["name"]))]:
        return no(kind, Reason.SNAPSHOT_FAILED, "; ".join(failures))
    said = "; ".join(f"{one.told['name']}: {one.next_words}" for one in turns)
    return yes(kind, Reason.SCHEDULED, said)


def _failure(observed: Observed, schedule: str) -> str:
    """Why the last one of a schedule that is over has failed; empty where it is complete, or there is none."""
    over = [one for one in _of_schedule(observed, schedule) if one.state != "Active"]
    if not over or over[-1].state == "Complete":
        return ""
    return f"{schedule}: snapshot {over[-1].name} has failed: {over[-1].words}"


def _as_told(known: ScheduleStatus) -> Status:
    return known.model_dump(mode="json", by_alias=True, exclude_none=True)
