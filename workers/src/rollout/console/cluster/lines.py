"""What lists show of runs, endpoints, snapshots and sweeps. Pure: objects in, lines out."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.cluster.objects import Object, condition, dig, parse_time

ENDED = (
    ("Failed", "Failed"),
    ("Complete", "Succeeded"),
    ("Stalled", "Stalled"),
    ("Suspended", "Suspended"),
)
"""Conditions that say more than Ready does, and the word for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRunLine:
    """One run in a list."""

    namespace: str
    name: str
    state: str
    reason: str
    step: int | None
    max_steps: int | None
    reward: float | None
    actors: int | None
    learners: int | None
    created_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLine:
    """One endpoint in a list; ``current`` is the revision that serves."""

    namespace: str
    name: str
    state: str
    reason: str
    current: str
    ready: int | None
    url: str
    created_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLine:
    """One snapshot in a list."""

    namespace: str
    name: str
    state: str
    reason: str
    run: str
    step: int | None
    size_bytes: int | None
    grade: str
    created_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLine:
    """One sweep in a list. ``over``: runs that have ended, however; ``best`` is empty before one has a value."""

    namespace: str
    name: str
    state: str
    reason: str
    total: int | None
    at_work: int
    over: int
    best: str
    value: float | None
    created_at: float | None


def run_line(run: Object) -> ClusterRunLine:
    """What a list shows of a run's object."""
    reward = dig(run, "status.progress.rewardMean")
    return ClusterRunLine(
        namespace=dig(run, "metadata.namespace") or "",
        name=dig(run, "metadata.name") or "",
        state=state_of(run),
        reason=str(condition(run, "Ready").get("reason") or ""),
        step=dig(run, "status.progress.step"),
        max_steps=dig(run, "status.progress.maxSteps"),
        reward=None if reward is None else float(reward),
        actors=dig(run, "status.actors.ready"),
        learners=dig(run, "status.learner.ready"),
        created_at=made_at(run),
    )


def endpoint_line(endpoint: Object) -> EndpointLine:
    """What a list shows of an endpoint's object."""
    return EndpointLine(
        namespace=dig(endpoint, "metadata.namespace") or "",
        name=dig(endpoint, "metadata.name") or "",
        state=state_of(endpoint),
        reason=str(condition(endpoint, "Ready").get("reason") or ""),
        current=str(dig(endpoint, "status.currentRevision") or ""),
        ready=dig(endpoint, "status.readyReplicas"),
        url=str(dig(endpoint, "status.url") or ""),
        created_at=made_at(endpoint),
    )


def snapshot_line(snapshot: Object) -> SnapshotLine:
    """What a list shows of a snapshot's object."""
    ready = condition(snapshot, "Ready")
    state = state_of(snapshot)
    return SnapshotLine(
        namespace=dig(snapshot, "metadata.namespace") or "",
        name=dig(snapshot, "metadata.name") or "",
        state="Ready" if state == "Running" else state,
        reason=str(ready.get("reason") or ""),
        run=str(dig(snapshot, "status.run.name") or ""),
        step=dig(snapshot, "status.step"),
        size_bytes=dig(snapshot, "status.sizeBytes"),
        grade=str(dig(snapshot, "status.grade") or ""),
        created_at=made_at(snapshot),
    )


def sweep_line(sweep: Object) -> SweepLine:
    """What a list shows of a sweep's object."""
    value, counts = dig(sweep, "status.best.value"), dig(sweep, "status.counts") or {}
    return SweepLine(
        namespace=dig(sweep, "metadata.namespace") or "",
        name=dig(sweep, "metadata.name") or "",
        state=state_of(sweep),
        reason=str(condition(sweep, "Ready").get("reason") or ""),
        total=dig(sweep, "status.total"),
        at_work=counts.get("running", 0) + counts.get("suspended", 0),
        over=sum(counts.get(one, 0) for one in ("succeeded", "stopped", "failed", "deleted")),
        best=str(dig(sweep, "status.best.name") or ""),
        value=None if value is None else float(value),
        created_at=made_at(sweep),
    )


def state_of(one: Object) -> str:
    """One word: how it ended, what holds it, or whether it works."""
    for kind, word in ENDED:
        if condition(one, kind).get("status") == "True":
            return word
    return "Running" if condition(one, "Ready").get("status") == "True" else "Pending"


def made_at(one: Object) -> float | None:
    """When an object was made."""
    made = dig(one, "metadata.creationTimestamp")
    return None if made is None else parse_time(made).timestamp()
