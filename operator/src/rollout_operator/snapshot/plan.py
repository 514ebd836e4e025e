"""What becomes of a snapshot next: from its object, its run and the coordinator's answer to a status. Pure.

A snapshot is asked for until it is durable or can never be; both are final. It is the run's coordinator that remembers
how far it is, so an operator that is started again between any two writes asks the same again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rollout_api.conditions import ConditionType, Reason
from rollout_api.names import SNAPSHOT_MANIFESTS
from rollout_api.v1alpha1.common import Condition, RuntimeRef
from rollout_api.v1alpha1.snapshot import SnapshotSpec, SnapshotStatus, SnapshotStorage
from rollout_operator.controller.conditions import ConditionUpdate, Status, no, stamp, yes
from rollout_operator.controller.times import render_time
from rollout_operator.run.plan.termination import reason_of
from rollout_operator.snapshot.answers import GRADES, LAYERS, SnapshotAnswer

ASK_SECONDS, LOOK_SECONDS, AGAIN_SECONDS = 2.0, 10.0, 15.0
"""Between two questions while it is being saved; while its run gets there; after a failure."""
KEPT = ("run", "startTime", "runtimeRef", "storage")
"""Said once, when the saving begins."""
ON_VOLUME = (
    "spec.deletionPolicy: Delete removes bytes from a bucket, and its run keeps objects on its volume: set storage.uri"
    " in the run, or write Retain; what lies on a volume goes with its claim"
)
NO_CRIU = (
    "no images of pods' processes are made in a cluster by this version; the other layers are taken"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """The run that is meant. ``place`` is where its objects lie: a bucket's uri, else its volume's claim and folder."""

    name: str
    uid: str
    finished: bool = False
    suspended: bool = False
    answers: bool = False
    place: str = ""
    claim: str = ""
    runtime: RuntimeRef | None = None
    storage: SnapshotStorage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSeen:
    """One RolloutSnapshot and what is around it. ``fault``: what of its spec is not acted on.

    ``parting``: its run is about to go, and its coordinator stays for it.
    """

    uid: str
    name: str
    generation: int
    created: datetime
    spec: SnapshotSpec | None
    status: SnapshotStatus
    fault: str = ""
    run: RunSeen | None = None
    parting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """``status`` None writes nothing; ``asks``: the coordinator is to be asked, and its answer planned with.

    ``bytes_taken``: of a snapshot that has just become durable.
    """

    status: Status | None = None
    asks: bool = False
    requeue_seconds: float | None = None
    bytes_taken: int | None = None


def plan_snapshot(seen: SnapshotSeen, now: datetime) -> SnapshotPlan:
    """What can be said without asking the coordinator."""
    if is_over(seen.status):
        return SnapshotPlan(status=seen_again(seen, now))
    ending = _never(seen) or too_late(seen, now)
    if ending is not None:
        return SnapshotPlan(status=tell(seen, failed(*ending), now))
    waits = _waits(seen)
    if waits is None:
        return SnapshotPlan(asks=True)
    return _going_on(seen, waits, LOOK_SECONDS, now)


def plan_answer(seen: SnapshotSeen, answer: SnapshotAnswer, now: datetime) -> SnapshotPlan:
    """What the coordinator's answer comes to."""
    assert seen.run is not None
    if answer.state == "Taken":
        found = {**_begun(seen, now), **_describe(seen.run, answer, now)}
        status = tell(seen, taken(answer, _named_in_vain(seen, answer)), now, **found)
        return SnapshotPlan(status=status, bytes_taken=answer.size_bytes)
    if answer.state == "Waiting" and seen.parting:
        words = f"run {seen.run.name} goes before its first anchor: there is nothing to save"
        return SnapshotPlan(status=tell(seen, failed(Reason.NO_SNAPSHOT_YET, words), now))
    if answer.state == "Waiting":
        waits = working(
            Reason.NO_SNAPSHOT_YET, answer.words or f"run {seen.run.name} has no anchor yet"
        )
        return _going_on(seen, waits, LOOK_SECONDS, now)
    if answer.state == "Failed":
        reason = reason_of(answer.message.partition(":")[0])
        if (
            reason is Reason.INVALID_SPEC
        ):  # such as a step whose anchor is not kept: it does not come back
            return SnapshotPlan(
                status=tell(seen, failed(reason, answer.words), now, **_begun(seen, now))
            )
        return _going_on(seen, working(reason, answer.words), AGAIN_SECONDS, now)
    saving = working(Reason.SAVING, answer.words or "its parts are being made durable")
    return _going_on(seen, saving, ASK_SECONDS, now)


def plan_silence(seen: SnapshotSeen, words: str, now: datetime) -> SnapshotPlan:
    """The coordinator does not answer: it is asked again."""
    return _going_on(seen, working(Reason.COORDINATOR_UNREACHABLE, words), AGAIN_SECONDS, now)


def plan_refused(seen: SnapshotSeen, reason: Reason, words: str, now: datetime) -> SnapshotPlan:
    """The API server does not let the operator go on: a person must act."""
    told = [no(ConditionType.READY, reason, words), yes(ConditionType.STALLED, reason, words)]
    return _going_on(seen, told, LOOK_SECONDS * 6, now)


# -- what is said -------------------------------------------------------------------------------------


def working(reason: Reason, words: str) -> list[ConditionUpdate]:
    """It is on its way."""
    return [
        no(ConditionType.READY, reason, words),
        yes(ConditionType.RECONCILING, reason, words),
    ]


def failed(reason: Reason, words: str) -> list[ConditionUpdate]:
    """It will never be."""
    kinds = (ConditionType.STALLED, ConditionType.FAILED, ConditionType.FINISHED)
    return [no(ConditionType.READY, reason, words), *(yes(kind, reason, words) for kind in kinds)]


def taken(answer: SnapshotAnswer, without: str = "") -> list[ConditionUpdate]:
    """It is durable; ``without``: what it does not have, and why."""
    words = f"the state after step {answer.step} is durable, as {answer.id}{without}"
    kinds = (ConditionType.READY, ConditionType.COMPLETE, ConditionType.FINISHED)
    return [yes(kind, Reason.SNAPSHOT_TAKEN, words) for kind in kinds]


def _named_in_vain(seen: SnapshotSeen, answer: SnapshotAnswer) -> str:
    """What is said of memory that was asked for by name, and that there is none of."""
    asked = seen.spec is not None and "EpisodicMemory" in seen.spec.include
    if not asked or any(one.kind == "episodic_memory" for one in answer.layers):
        return ""
    return "; it has no EpisodicMemory: environments had kept nothing by then"


def _describe(run: RunSeen, answer: SnapshotAnswer, now: datetime) -> Status:
    manifest = f"{SNAPSHOT_MANIFESTS}{answer.id}.json"
    volume = {"claimName": run.claim, "path": f"objects/{manifest}"}
    location = {"object": {"uri": f"{run.place}/{manifest}"}} if run.place else {"volume": volume}
    return describe_taken(location, answer, now)


def describe_taken(location: Status, answer: SnapshotAnswer, now: datetime) -> Status:
    """What is known of a snapshot that is there."""
    return {
        "step": answer.step,
        "lineage": answer.lineage,
        "location": location,
        "digest": f"blake3:{answer.id}",
        "sizeBytes": answer.size_bytes,
        "grade": GRADES[answer.grade],
        "layers": [
            {
                "name": LAYERS[one.kind],
                "digest": f"blake3:{one.digest}",
                "sizeBytes": one.size_bytes,
                "grade": GRADES[one.grade],
            }
            for one in answer.layers
        ],
        "completionTime": render_time(now),
    }


def _begun(seen: SnapshotSeen, now: datetime) -> Status:
    """Which run is meant from here on, and since when."""
    if seen.run is None or seen.status.run is not None:
        return {}
    run = {"name": seen.run.name, "uid": seen.run.uid}
    return {"run": run, "startTime": render_time(now), **_reached_by(seen.run)}


def _reached_by(run: RunSeen) -> Status:
    """How the bytes are reached when the run is gone."""
    found = {"runtimeRef": run.runtime, "storage": run.storage}
    return {
        name: one.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name, one in found.items()
        if one is not None
    }


def _going_on(
    seen: SnapshotSeen, aspects: list[ConditionUpdate], seconds: float, now: datetime
) -> SnapshotPlan:
    left = (deadline(seen) - now).total_seconds()
    return SnapshotPlan(
        status=tell(seen, aspects, now, **_begun(seen, now)),
        requeue_seconds=max(0.5, min(seconds, left + 0.5)),
    )


def tell(
    seen: SnapshotSeen, aspects: list[ConditionUpdate], now: datetime, **found: Any
) -> Status | None:
    """The whole status; None where it says so already."""
    supported = no(ConditionType.SUPPORTED, Reason.NOT_SUPPORTED, NO_CRIU)
    before = seen.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    conditions = stamp([*aspects, supported], seen.status.conditions, seen.generation, now)
    status: Status = {
        **{name: value for name, value in before.items() if name in KEPT},
        **found,
        "observedGeneration": seen.generation,
        "conditions": conditions,
    }
    return None if _same(status, before) else status


def _same(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    kept = {name: value for name, value in before.items() if value not in ([], {})}
    ordered = sorted(kept.get("conditions", ()), key=lambda one: one["type"])
    return status == {**kept, "conditions": ordered}


def seen_again(seen: SnapshotSeen, now: datetime) -> Status | None:
    """What is over stays as it is; only the generation that it speaks about goes on."""
    if seen.status.observed_generation == seen.generation:
        return None
    before = seen.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    told = [{**one, "observedGeneration": seen.generation} for one in before["conditions"]]
    told += _unpurgeable(seen, now)
    kept = {name: value for name, value in before.items() if value not in ([], {})}
    conditions = sorted({one["type"]: one for one in told}.values(), key=lambda one: one["type"])
    return {**kept, "observedGeneration": seen.generation, "conditions": conditions}


def _unpurgeable(seen: SnapshotSeen, now: datetime) -> list[Status]:
    """What is said of a policy that came later than the snapshot, and that nobody can carry out."""
    location = seen.status.location
    wanted = seen.spec is not None and seen.spec.deletion_policy == "Delete"
    if not wanted or location is None or location.volume is None:
        return []
    said = no(ConditionType.PURGED, Reason.NOT_SUPPORTED, ON_VOLUME)
    return stamp([said], seen.status.conditions, seen.generation, now)


# -- whether it can be --------------------------------------------------------------------------------


def _never(seen: SnapshotSeen) -> tuple[Reason, str] | None:
    """Why it will never be."""
    if seen.spec is None:
        return Reason.INVALID_SPEC, seen.fault
    if seen.fault:
        return Reason.NOT_SUPPORTED, seen.fault
    wanted = seen.spec.source.run
    assert wanted is not None
    told = seen.status.run.uid if seen.status.run is not None else None
    meant, run = wanted.uid or told, seen.run
    if run is None:
        gone = f"run {wanted.name} is gone; nothing of it was saved for this object"
        return (Reason.RUN_GONE, gone) if told else None
    if meant is not None and run.uid != meant:
        words = f"run {wanted.name} has UID {run.uid}, expected {meant}: another run of that name"
        return Reason.RUN_GONE, words
    if seen.spec.deletion_policy == "Delete" and not run.place:
        return Reason.NOT_SUPPORTED, ON_VOLUME
    if run.finished:
        words = (
            f"run {wanted.name} has ended, and with it the coordinator that takes snapshots: its model stays"
            f" (model: {{fromRun: {{name: {wanted.name}}}}})"
        )
        return Reason.RUN_GONE, words
    return None


def too_late(seen: SnapshotSeen, now: datetime) -> tuple[Reason, str] | None:
    """Why it is given up, once its time is over."""
    if now < deadline(seen):
        return None
    assert seen.spec is not None
    last = next((one.message for one in seen.status.conditions if one.type == "Ready"), "")
    words = f"not durable within {seen.spec.deadline_seconds} s (deadlineSeconds)"
    return Reason.DEADLINE_EXCEEDED, f"{words}; last: {last}" if last else words


def deadline(seen: SnapshotSeen) -> datetime:
    """Until when it is tried."""
    seconds = seen.spec.deadline_seconds if seen.spec is not None else 0
    return seen.created + timedelta(seconds=seconds)


def _waits(seen: SnapshotSeen) -> list[ConditionUpdate] | None:
    """What has to come first; None where the coordinator can be asked."""
    assert seen.spec is not None
    assert seen.spec.source.run is not None
    name, run = seen.spec.source.run.name, seen.run
    if run is None:
        words = f"there is no run {name} in this namespace"
        return [
            no(ConditionType.READY, Reason.REFERENCE_NOT_FOUND, words),
            yes(ConditionType.STALLED, Reason.REFERENCE_NOT_FOUND, words),
        ]
    if run.suspended and not (seen.parting and run.answers):
        return working(
            Reason.SUSPENDED, f"run {name} is suspended: its snapshot is taken when it goes on"
        )
    if not run.answers:
        return working(Reason.STARTING, f"the coordinator of run {name} is not ready yet")
    return None


def is_over(status: SnapshotStatus) -> bool:
    """Whether it has ended, for good or ill."""
    return any(_holds(one, "Finished") for one in status.conditions)


def _holds(condition: Condition, kind: str) -> bool:
    return condition.type == kind and condition.status == "True"
