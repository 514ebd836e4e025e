"""What people ask of objects and pods: columns, conditions, what a pod waits for. Pure: plain objects in, plain data out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rollout.cluster.kinds import RUN, SWEEP, Kind
from rollout.errors import SpecError
from rollout_api.names import LABEL_ROLE, LABEL_RUN_UID

Object = Mapping[str, Any]
CALM = frozenset({"ContainerCreating", "PodInitializing"})
"""What a container waits for in the normal course."""


UNHELPFUL = re.compile(r" (?:no new claims to deallocate|preemption:)")
"""Where the scheduler begins to tell what it has tried beside; nodes and reasons stand before that."""
SWEPT = ("running", "succeeded", "stopped")
"""Counts of a sweep that ``rollout get`` shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """A pod in a line. ``trouble`` is empty where there is none."""

    name: str
    role: str
    phase: str
    node: str
    ready: str
    restarts: int
    trouble: str


def dig(data: Any, path: str) -> Any:
    """The value at a dotted path, None where it is not there."""
    for part in path.split("."):
        if not isinstance(data, Mapping):
            return None
        data = data.get(part)
    return data


def select_pods(uid: str, role: str | None = None) -> str:
    """The label selector of a run's pods, or of those of one role."""
    labels = {LABEL_RUN_UID: uid, **({} if role is None else {LABEL_ROLE: role})}
    return ",".join(f"{name}={value}" for name, value in labels.items())


def condition(obj: Object, kind: str) -> Object:
    """A condition by type; empty when there is none."""
    return next((one for one in dig(obj, "status.conditions") or () if one["type"] == kind), {})


def age(obj: Object, now: datetime) -> str:
    """How long ago it was made: ``42s``, ``17m``, ``5h``, ``9d``."""
    made = dig(obj, "metadata.creationTimestamp")
    return "-" if made is None else short_duration((now - parse_time(made)).total_seconds())


def short_duration(seconds: float) -> str:
    """A duration in its largest whole unit of at least two, as kubectl writes it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def parse_time(text: str) -> datetime:
    """An RFC 3339 time of the API server."""
    return datetime.fromisoformat(text).astimezone(UTC)


def columns(kind: Kind) -> tuple[str, ...]:
    """The headings of ``rollout get``."""
    if kind is RUN:
        return ("NAME", "READY", "REASON", "STEP", "REWARD", "ACTORS", "LEARNERS", "AGE")
    if kind is SWEEP:
        return ("NAME", "READY", "REASON", "RUNS", *map(str.upper, SWEPT), "BEST", "VALUE", "AGE")
    return ("NAME", "READY", "REASON", "AGE")


def row(kind: Kind, obj: Object, now: datetime) -> list[Any]:
    """One object below ``columns``."""
    ready = condition(obj, "Ready")
    begin = [dig(obj, "metadata.name"), ready.get("status"), ready.get("reason")]
    if kind is SWEEP:
        counts = [dig(obj, f"status.counts.{name}") for name in SWEPT]
        value, best = dig(obj, "status.best.value"), dig(obj, "status.best.name")
        found = [best, None if value is None else float(value)]
        return [*begin, dig(obj, "status.total"), *counts, *found, age(obj, now)]
    if kind is not RUN:
        return [*begin, age(obj, now)]
    progress = dig(obj, "status.progress") or {}
    reward = progress.get("rewardMean")
    numbers = [progress.get("step"), None if reward is None else float(reward)]
    ready_pods = [dig(obj, f"status.{role}.ready") for role in ("actors", "learner")]
    return [*begin, *numbers, *ready_pods, age(obj, now)]


REVISION_COLUMNS = ("REVISION", "MODEL", "DIGEST", "SERVED", "WEIGHT", "READY")
"""The headings of ``rollout endpoint history``."""


def revision_rows(endpoint: Object, now: datetime) -> list[list[Any]]:
    """The revisions of an endpoint below ``REVISION_COLUMNS``; SERVED is how long ago one last became what serves."""
    return [_revision_row(one, now) for one in dig(endpoint, "status.revisions") or ()]


def _revision_row(one: Object, now: datetime) -> list[Any]:
    served, at = one.get("servedTime"), one.get("modelRevision")
    return [
        one["name"],
        f"{one['modelURI']}@{at}" if at else one["modelURI"],
        (one.get("modelDigest") or "-").partition(":")[2][:12] or "-",
        "-" if served is None else short_duration((now - parse_time(served)).total_seconds()),
        one.get("weight", 0),
        one.get("ready", 0),
    ]


def find_rollback(endpoint: Object, wanted: str | None) -> str:
    """The revision to go back to: ``wanted``, or what served last before what serves now. Raises SpecError with those there are."""
    revisions = dig(endpoint, "status.revisions") or ()
    known, current = [one["name"] for one in revisions], dig(endpoint, "status.currentRevision")
    name = dig(endpoint, "metadata.name")
    if wanted is not None:
        if wanted not in known:
            there = ", ".join(known) or "none"
            raise SpecError(
                f"--to {wanted}: endpoint {name} has no such revision; there are: {there}"
            )
        return wanted
    served = [one for one in revisions if one.get("servedTime") and one["name"] != current]
    if not served:
        raise SpecError(
            f"endpoint {name} has served nothing before {current or 'now'};"
            f" name a revision with --to: {', '.join(known) or 'there is none'}"
        )
    return max(served, key=lambda one: parse_time(one["servedTime"]))["name"]


def pod_state(pod: Object) -> PodState:
    """A pod in a line."""
    containers = _container_states(pod)
    ready = sum(bool(one.get("ready")) for one in dig(pod, "status.containerStatuses") or ())
    return PodState(
        name=dig(pod, "metadata.name"),
        role=(dig(pod, "metadata.labels") or {}).get("rollout.dev/role", "-"),
        phase="Terminating" if dig(pod, "metadata.deletionTimestamp") else dig(pod, "status.phase"),
        node=dig(pod, "spec.nodeName") or "-",
        ready=f"{ready}/{len(dig(pod, 'spec.containers') or ())}",
        restarts=sum(one.get("restartCount", 0) for one in containers),
        trouble="; ".join([*_unscheduled(pod), *_troubles(containers)]),
    )


def _container_states(pod: Object) -> list[Object]:
    kinds = ("initContainerStatuses", "containerStatuses")
    return [one for kind in kinds for one in dig(pod, f"status.{kind}") or ()]


def _unscheduled(pod: Object) -> Iterator[str]:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        said = scheduled.get("message") or str(scheduled.get("reason"))
        yield f"not scheduled: {UNHELPFUL.split(said)[0]}"


def _troubles(containers: Sequence[Object]) -> Iterator[str]:
    for one in containers:
        waiting = dig(one, "state.waiting") or {}
        if waiting and waiting.get("reason") not in CALM:
            yield f"{one['name']} waits: {waiting.get('reason')} {waiting.get('message', '')}".strip()
        last = dig(one, "lastState.terminated") or dig(one, "state.terminated") or {}
        if last.get("exitCode"):
            yield f"{one['name']} ended with code {last['exitCode']} ({last.get('reason', '')})"
