"""What becomes next of a snapshot that is being deleted: from its object, its run and its Job to writes. Pure.

The bytes go first, the object after them, and after ``PURGE_SECONDS`` the object in any case: who deletes must not be
held for ever by a store that is away. What stays then is named in an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rollout_api.conditions import ConditionType, Reason
from rollout_api.names import FINALIZER_SNAPSHOT
from rollout_api.v1alpha1.snapshot import SnapshotStatus
from rollout_operator.controller.conditions import Status, no, stamp
from rollout_operator.controller.times import parse_time
from rollout_operator.jobs.work import Work
from rollout_operator.run.plan.model import EventSpec

PURGE_SECONDS = 600.0
"""From the first look at a deleted snapshot to its end, whatever becomes of the bytes."""
LOOK_SECONDS, LOOK_SECONDS_MAX = 2.0, 15.0
"""Between two looks at the Job: a tenth of the time that it has taken."""

LedgerState = Literal["Alive", "Draining", "Kept", "Gone"]
"""Of the run: it goes on; it is over and has pods; it is over and its ledger is there, or is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeSeen:
    """One deleted snapshot. ``wanted``: its bytes shall go. ``place``: where they are.

    ``blocked``: why no Job can be made. ``gone``: its namespace goes, too, so that none can ever be made.
    """

    generation: int
    wanted: bool
    status: SnapshotStatus
    place: str = ""
    run: LedgerState = "Gone"
    work: Work | None = None
    blocked: tuple[Reason, str] | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """``starts``: make the Job. ``lets_go``: drop the finalizer, after the event ``note``."""

    status: Status | None = None
    starts: bool = False
    lets_go: bool = False
    note: EventSpec | None = None
    requeue_seconds: float | None = None


def plan_purge(seen: PurgeSeen, now: datetime) -> PurgePlan:
    """What is done next for a snapshot that is being deleted."""
    if seen.status.run is None or _is_on_volume(seen.status):
        return PurgePlan(
            lets_go=True
        )  # nothing was ever asked for, or nothing that a Job could reach
    if not seen.wanted:
        return _give_up(seen, "deletionPolicy is Retain", "Normal")
    if seen.work is not None and seen.work.state == "Done":
        words = seen.work.words or "its bytes are gone"
        note = EventSpec(type="Normal", reason=Reason.PURGED, message=words)
        return PurgePlan(lets_go=True, note=note)
    reason, words = _waits_for(seen)
    passed = seconds_passed(seen.status, now)
    if seen.gone or passed >= PURGE_SECONDS or (seen.work and seen.work.state == "Failed"):
        return _give_up(seen, f"{reason.value}: {words}", "Warning")
    starts = seen.work is None and seen.blocked is None and seen.run != "Draining"
    return PurgePlan(
        status=_tell(seen, reason, words, now),
        starts=starts,
        note=_warn(reason, words),
        requeue_seconds=min(LOOK_SECONDS_MAX, max(LOOK_SECONDS, passed / 10)),
    )


def wants_finalizer(*, policy: str, status: SnapshotStatus) -> bool:
    """Whether the bytes of a snapshot that is not being deleted shall go with it, as far as there are any."""
    over = any(one.type == "Finished" and one.status == "True" for one in status.conditions)
    never = over and status.run is None
    return policy == "Delete" and not never and not _is_on_volume(status)


def with_finalizer(finalizers: tuple[str, ...], *, wanted: bool) -> tuple[str, ...] | None:
    """The finalizers as they shall be, those of others in their order; None where they are so."""
    others = tuple(one for one in finalizers if one != FINALIZER_SNAPSHOT)
    if wanted == (FINALIZER_SNAPSHOT in finalizers):
        return None
    return (*others, FINALIZER_SNAPSHOT) if wanted else others


def seconds_passed(status: SnapshotStatus, now: datetime) -> float:
    """Since it was first said that the bytes are to go; 0 before that."""
    said = [one for one in status.conditions if one.type == ConditionType.PURGED]
    since = parse_time(said[0].last_transition_time) if said else now
    return max(0.0, (now - since).total_seconds())


def _is_on_volume(status: SnapshotStatus) -> bool:
    return status.location is not None and status.location.volume is not None


def _waits_for(seen: PurgeSeen) -> tuple[Reason, str]:
    if seen.blocked is not None:
        return seen.blocked
    if seen.work is not None:
        return seen.work.reason, seen.work.words or "its bytes are being removed"
    if seen.run == "Draining":
        return Reason.DRAINING, "its run is over, and has pods that are still at work"
    return Reason.PURGING, "its bytes are being removed"


def _give_up(seen: PurgeSeen, why: str, kind: Literal["Normal", "Warning"]) -> PurgePlan:
    where = seen.place or "the run's place in its bucket"
    words = f"bytes of it stay in {where} ({why})"
    note = EventSpec(type=kind, reason=Reason.PURGE_GIVEN_UP, message=words)
    return PurgePlan(lets_go=True, note=note)


def _warn(reason: Reason, words: str) -> EventSpec | None:
    """Once for each reason, and not for the normal course."""
    if reason in (Reason.PURGING, Reason.DRAINING):
        return None
    return EventSpec(type="Warning", reason=reason, message=words, key=f"purge {reason.value}")


def _tell(seen: PurgeSeen, reason: Reason, words: str, now: datetime) -> Status | None:
    """The whole status, in which one condition has changed; None where it says so already."""
    before = seen.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    said = no(ConditionType.PURGED, reason, words)
    stamped = stamp([said], seen.status.conditions, seen.generation, now)
    others = [
        one for one in before.get("conditions", ()) if one["type"] != ConditionType.PURGED.value
    ]
    conditions = sorted([*others, *stamped], key=lambda one: one["type"])
    kept = {name: value for name, value in before.items() if value not in ([], {})}
    status = {**kept, "conditions": conditions}
    return None if status == kept else status
