"""The snapshot that a run makes when it is suspended, or ends well: its coordinator stays for it, and no longer than a bound. Pure.

Which suspension or end is meant is said by the run attempt, and stands in the snapshot's name: of each there is one,
whoever asks again. Since when it is waited for stands in the run's status.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rollout_api.conditions import ConditionType, Reason
from rollout_api.names import scheduled_name
from rollout_operator.controller.conditions import ConditionUpdate, Status, no, yes
from rollout_operator.controller.times import parse_time, render_time
from rollout_operator.run.plan.model import MadeSnapshot, Observed, SnapshotOrder
from rollout_operator.run.plan.phases import Phase, current_live
from rollout_operator.run.plan.saving.schedules import (
    BEST,
    END,
    PARTING_SECONDS,
    SUSPEND,
    best_anchor,
    describe,
    find_gate,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """``waits``: what is waited for, empty where the coordinator may go. ``told`` is the entry of the status, None for none."""

    waits: str = ""
    order: SnapshotOrder | None = None
    told: Status | None = None
    aspect: ConditionUpdate | None = None
    due: datetime | None = None


NOTHING = Parting()


def plan_parting(observed: Observed, kind: str, attempt: int, now: datetime) -> Parting:
    """Of a run whose coordinator would go now, or has gone."""
    step = best_anchor(observed) if kind == BEST else None
    if not _is_wanted(observed, kind) or (kind == BEST and step is None):
        return NOTHING
    name = scheduled_name(observed.name, observed.uid, kind, step or attempt)
    made = next((one for one in observed.snapshots if one.name == name), None)
    told, since = _since(observed, kind, name, now)
    over = made is not None and made.state != "Active"
    due = since + timedelta(seconds=PARTING_SECONDS)
    if over or now >= due or not observed.pods_of("coordinator"):
        aspect = _ended(observed, kind, name, made)
        return Parting(told=None if aspect is None else told, aspect=aspect)
    return Parting(
        waits=f"snapshot {name} is made before the coordinator goes, until {render_time(due)} at the latest",
        order=None
        if made is not None or observed.unsaved is not None
        else _order(name, kind, step),
        told=told,
        aspect=_under_way(observed, name),
        due=due if made is not None else min(due, now + timedelta(seconds=15)),
    )


def plan_last(observed: Observed, attempt: int, now: datetime) -> Parting:
    """Of a run that ends well: the best version, then the last; in the end what has failed is told, if anything."""
    found = [plan_parting(observed, kind, attempt, now) for kind in (BEST, END)]
    waiting = [one for one in found if one.waits]
    if waiting:
        return waiting[0]
    told = [one for one in found if one.aspect is not None]
    failed = [one for one in told if one.aspect is not None and not one.aspect.holds]
    return next(iter((*failed, *reversed(told))), NOTHING)


def is_coordinators_turn(phase: Phase) -> bool:
    """Whether workers are gone, and the coordinator goes or has gone."""
    live = phase.live.get("coordinator")
    return not phase.cutting and (live is None or not live.replicas)


def stay(observed: Observed, phase: Phase, parting: Parting) -> Phase:
    """The phase, with the coordinator as it is while its last snapshot is waited for."""
    if not parting.waits:
        return phase
    live = dict(phase.live)
    live["coordinator"] = current_live(observed, "coordinator")
    return Phase(live=live, due=parting.due)


def orders(parting: Parting) -> tuple[SnapshotOrder, ...]:
    """What is to be made."""
    return () if parting.order is None else (parting.order,)


def tell_parting(observed: Observed, parting: Parting) -> Status:
    """The entries of the status, with this one's; nothing where it has none."""
    if parting.told is None:
        return {}
    others = [
        one.model_dump(mode="json", by_alias=True, exclude_none=True)
        for one in observed.status.schedules
        if one.name != parting.told["name"]
    ]
    return {"schedules": [*others, parting.told]}


def _is_wanted(observed: Observed, kind: str) -> bool:
    """Whether it is asked for, and could be made: without an anchor there is nothing to save."""
    spec = observed.spec
    if spec is None or spec.train is None or find_gate(observed) is not None:
        return False
    asked = spec.snapshots
    return {SUSPEND: asked.on_suspend, END: asked.at_end, BEST: asked.best}[kind]


def _since(observed: Observed, kind: str, name: str, now: datetime) -> tuple[Status, datetime]:
    """The status of this one, and since when it is waited for."""
    known = next((one for one in observed.status.schedules if one.name == kind), None)
    if known is not None and known.last_snapshot == name and known.last_time is not None:
        said = known.model_dump(mode="json", by_alias=True, exclude_none=True)
        return said, parse_time(known.last_time)
    return {"name": kind, "lastTime": render_time(now), "lastSnapshot": name}, now


def _is_told(observed: Observed, kind: str, name: str) -> bool:
    return any(one.name == kind and one.last_snapshot == name for one in observed.status.schedules)


def _order(name: str, kind: str, step: int | None) -> SnapshotOrder:
    return SnapshotOrder(
        name=name,
        schedule=kind,
        description=describe(kind),
        deadline_seconds=PARTING_SECONDS,
        step=step,
    )


def _under_way(observed: Observed, name: str) -> ConditionUpdate:
    kind = ConditionType.SNAPSHOTS_SCHEDULED
    if observed.unsaved is not None:
        return no(kind, observed.unsaved.reason, observed.unsaved.message)
    return no(kind, Reason.SAVING, f"snapshot {name} is being made")


def _ended(
    observed: Observed, kind: str, name: str, made: MadeSnapshot | None
) -> ConditionUpdate | None:
    """What became of it, also once its object is gone; nothing is said where no coordinator was there to begin it."""
    if made is None and not _is_told(observed, kind, name):
        return None
    type_, words = ConditionType.SNAPSHOTS_SCHEDULED, f"{kind}: snapshot {name} is durable"
    said = {one.message for one in observed.status.conditions if one.type == type_.value}
    if (made is None and words in said) or (made is not None and made.state == "Complete"):
        return yes(type_, Reason.SNAPSHOT_TAKEN, words)
    late = f"not durable within {PARTING_SECONDS} s"
    why = made.words if made is not None and made.words else late
    return no(type_, Reason.SNAPSHOT_FAILED, f"{kind}: snapshot {name} has failed: {why}")
