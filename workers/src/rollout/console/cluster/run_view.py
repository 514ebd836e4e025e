"""One run as its object, its pods and its events say it, and one endpoint. What a viewer may not read is None, and is named on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rollout.cluster.kinds import ENDPOINT, RUN, Reference
from rollout.cluster.objects import (
    REVISION_COLUMNS,
    Object,
    PodState,
    dig,
    parse_time,
    pod_state,
    revision_rows,
)
from rollout.cluster.reading import read_events, read_pods
from rollout.cluster.stuck import Facts, Finding, event_time, find_causes, warnings
from rollout.console.cluster.lines import ClusterRunLine, EndpointLine, endpoint_line, run_line
from rollout.errors import KubeError, ObjectNotFound

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster

EVENTS_MAX = 50
NUMBERS = (
    ("Policy version", "policyVersion"),
    ("Lineage", "lineage"),
    ("Tokens per second", "tokensPerSecond"),
    ("Waits for", "bottleneck"),
    ("Mismatch KL", "mismatchKl"),
    ("Staleness, steps", "staleness"),
)
"""Of ``status.progress``, with the words for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """One condition; ``since`` is when its status changed last."""

    type: str
    status: str
    reason: str
    message: str
    since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of the cluster about the run, a workload or a pod of it."""

    at: float | None
    type: str
    reason: str
    about: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """One run. ``pods`` and ``events`` are None where the viewer may not list them, and ``causes`` without pods."""

    line: ClusterRunLine
    uid: str
    mark: str
    attempt: int | None
    suspended: bool
    numbers: tuple[tuple[str, Any], ...]
    snapshots: tuple[tuple[str, str, int], ...]
    conditions: tuple[ConditionRow, ...]
    pods: tuple[PodState, ...] | None
    events: tuple[EventRow, ...] | None
    causes: tuple[Finding, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEndpoint:
    """One endpoint; ``revisions`` are rows below ``columns``. ``held``: it was taken back to this revision by hand."""

    line: EndpointLine
    uid: str
    held: str
    columns: tuple[str, ...]
    revisions: tuple[tuple[Any, ...], ...]
    conditions: tuple[ConditionRow, ...]


def read_endpoint(cluster: Cluster, name: str, now: datetime) -> ClusterEndpoint:
    """What the page of an endpoint shows; ``cluster`` is its namespace. Raises ObjectNotFound, KubeError."""
    try:
        found = cluster.get(Reference(kind=ENDPOINT, name=name))
    except ObjectNotFound as error:
        message = f"there is no endpoint {name} in namespace {cluster.namespace}"
        raise ObjectNotFound(message) from error
    except KubeError as error:
        raise KubeError(f"the console's own account could not read it: {error}") from error
    return ClusterEndpoint(
        line=endpoint_line(found),
        uid=dig(found, "metadata.uid") or "",
        held=str(dig(found, "spec.rollbackTo") or ""),
        columns=REVISION_COLUMNS,
        revisions=tuple(map(tuple, revision_rows(found, now))),
        conditions=tuple(map(condition_row, dig(found, "status.conditions") or ())),
    )


def read_run(
    cluster: Cluster, name: str, now: datetime, *, with_pods: bool, with_events: bool
) -> ClusterRun:
    """What the page of a run shows; ``cluster`` is its namespace. Raises ObjectNotFound, KubeError."""
    try:
        found = cluster.get(Reference(kind=RUN, name=name))
        pods = read_pods(cluster, found) if with_pods else None
        events = read_events(cluster, found, pods or ()) if with_events else None
    except ObjectNotFound as error:
        raise ObjectNotFound(f"there is no run {name} in namespace {cluster.namespace}") from error
    except KubeError as error:
        raise KubeError(f"the console's own account could not read it: {error}") from error
    return describe_run(found, pods, events, now)


def describe_run(
    found: Object, pods: Sequence[Object] | None, events: Sequence[Object] | None, now: datetime
) -> ClusterRun:
    """The page of a run from what was read. Pure."""
    states = None if pods is None else tuple(map(pod_state, pods))
    progress = dig(found, "status.progress") or {}
    causes = None
    if states is not None:
        facts = Facts(run=found, pods=states, events=warnings(events or ()), now=now)
        causes = find_causes(facts)
    return ClusterRun(
        line=run_line(found),
        uid=dig(found, "metadata.uid") or "",
        mark=dig(found, "metadata.resourceVersion") or "",
        attempt=dig(found, "status.attempt"),
        suspended=bool(dig(found, "spec.suspend")),
        numbers=tuple((words, progress[key]) for words, key in NUMBERS if key in progress),
        snapshots=tuple(_snapshots(found)),
        conditions=tuple(map(condition_row, dig(found, "status.conditions") or ())),
        pods=states,
        events=None if events is None else tuple(map(event_row, list(events)[-EVENTS_MAX:][::-1])),
        causes=causes,
    )


def _snapshots(found: Object) -> list[tuple[str, str, int]]:
    kept = [
        (words, dig(found, f"status.{key}"))
        for words, key in (("newest", "lastSnapshot"), ("best", "best"))
    ]
    return [(words, str(one["name"]), int(one["step"])) for words, one in kept if one]


def condition_row(one: Object) -> ConditionRow:
    """A condition as a page shows it."""
    return ConditionRow(
        type=str(one.get("type", "")),
        status=str(one.get("status", "")),
        reason=str(one.get("reason") or ""),
        message=str(one.get("message") or ""),
        since=_moment(one.get("lastTransitionTime")),
    )


def event_row(one: Object) -> EventRow:
    """An event as a page shows it."""
    about = one.get("involvedObject") or {}
    return EventRow(
        at=_moment(event_time(one)),
        type=str(one.get("type") or ""),
        reason=str(one.get("reason") or ""),
        about=f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        message=str(one.get("message") or ""),
    )


def _moment(text: str | None) -> float | None:
    return parse_time(text).timestamp() if text else None
