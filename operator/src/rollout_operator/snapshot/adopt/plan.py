"""What becomes next of a snapshot that exists: from its object and the Job that reads it to a status. Pure.

The Job's word is that of a tenant's pod: it fills the status and proves nothing. A run that begins with the snapshot asks for
signature, digest and bytes itself.
"""

from __future__ import annotations

from datetime import datetime

from rollout_api.checks.pods.allowed import allows_place, is_plain
from rollout_api.conditions import Reason
from rollout_api.places import SNAPSHOT_EXPECTED, SnapshotAt, namespace_place, parse_snapshot
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.v1alpha1.storage import SnapshotObject
from rollout_operator.errors import CoordinatorUnreachable
from rollout_operator.jobs.work import Work
from rollout_operator.snapshot.answers import SnapshotAnswer, parse_answer
from rollout_operator.snapshot.plan import (
    SnapshotPlan,
    SnapshotSeen,
    deadline,
    describe_taken,
    failed,
    is_over,
    plan_refused,
    seen_again,
    taken,
    tell,
    too_late,
    working,
)
from rollout_operator.snapshot.running import ReasonMessage

LOOK_SECONDS, AGAIN_SECONDS = 3.0, 15.0


def parse_existing(given: SnapshotObject) -> SnapshotAt | str:
    """What a spec names; or what is wrong with it, in words."""
    found = parse_snapshot(given)
    if found is None:
        return (
            f"spec.source.existing: {given.uri!r} with digest {given.digest}: {SNAPSHOT_EXPECTED}"
        )
    return found


def find_misplaced(place: str, runtime: RuntimeSpec, namespace: str) -> ReasonMessage | None:
    """Why a place is not one that this namespace may read by this runtime."""
    own = runtime.storage.uri if runtime.storage is not None else None
    mine = f"{namespace_place(own, namespace)}/" if own is not None else ""
    below = bool(mine) and is_plain(place) and place.startswith(mine)
    if below or allows_place(place, runtime.allowed or Allowed(), namespace):
        return None
    words = (
        f"spec.source.existing.uri: {place[:200]!r} is neither below {mine or 'a storage.uri of the runtime'} nor named by"
        " the runtime's spec.allowed.storage"
    )
    return Reason.NOT_ALLOWED, words


def plan_begin(seen: SnapshotSeen, now: datetime) -> SnapshotPlan | None:
    """What can be said before anybody has looked; None where somebody has to."""
    if is_over(seen.status):
        return SnapshotPlan(status=seen_again(seen, now))
    if seen.spec is None:
        return _end(seen, (Reason.INVALID_SPEC, seen.fault), now)
    if seen.fault:
        return _end(seen, (Reason.NOT_SUPPORTED, seen.fault), now)
    late = too_late(seen, now)
    return None if late is None else _end(seen, late, now)


def plan_trouble(seen: SnapshotSeen, trouble: ReasonMessage, now: datetime) -> SnapshotPlan:
    """A person must act; it is looked at again until its deadline."""
    return plan_refused(seen, *trouble, now)


def plan_work(
    seen: SnapshotSeen, existing: SnapshotAt, uri: str, work: Work | None, now: datetime
) -> SnapshotPlan:
    """What the Job comes to; ``asks`` where it has to be made."""
    if work is None:
        waits = working(Reason.VERIFYING, "it is being read")
        return SnapshotPlan(status=tell(seen, waits, now), asks=True, requeue_seconds=LOOK_SECONDS)
    if work.state == "Done":
        answer = _read(work.answer)
        if answer is None or answer.id != existing.id:
            said = (
                Reason.SNAPSHOT_REFUSED,
                "the Job that read it has said nothing of this snapshot",
            )
            return _end(seen, said, now)
        found = describe_taken({"object": {"uri": uri}}, answer, now)
        return SnapshotPlan(status=tell(seen, taken(answer), now, **found))
    said = work.reason is not Reason.PURGING
    if work.state == "Failed" or work.reason is Reason.SNAPSHOT_REFUSED:
        reason = work.reason if said else Reason.DEADLINE_EXCEEDED
        return _end(seen, (reason, work.words or "it was not read in time"), now)
    reason = work.reason if said else Reason.VERIFYING
    waits = working(reason, work.words or "it is being read")
    left = (deadline(seen) - now).total_seconds()
    return SnapshotPlan(
        status=tell(seen, waits, now), requeue_seconds=max(0.5, min(LOOK_SECONDS, left + 0.5))
    )


def _end(seen: SnapshotSeen, why: ReasonMessage, now: datetime) -> SnapshotPlan:
    return SnapshotPlan(status=tell(seen, failed(*why), now))


def _read(answer: str) -> SnapshotAnswer | None:
    try:
        found = parse_answer(answer)
    except CoordinatorUnreachable:
        return None
    return found if found.state == "Taken" else None
