"""What holds a run up, from what the cluster says of it, and what a person may try. Pure.

Findings come in the order in which a cause hides the ones after it: a run that the operator cannot go on
with, pods that cannot be placed or started, workers that fail, workers that live and do not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rollout.cluster.objects import Object, PodState, condition, dig, parse_time, short_duration
from rollout_api.conditions import Reason

ADVICE = {
    "not scheduled": "no node has room or the right labels (`kubectl describe node`): fewer actors give devices back"
    " (`rollout scale {run} N`), `rollout suspend {run}` gives all back until there is room; or another accelerator class",
    "ImagePull": "the image cannot be pulled: correct the name in the runtime or the run (suspend, edit, resume), or"
    " give the namespace the pull secret",
    "ErrImageNeverPull": "the image is not on the node and may not be pulled",
    "OOMKilled": "more memory than the pod may use: raise resources.limits.memory of the role, or lower"
    " train.microBatchTokens",
    "CreateContainerConfigError": "a Secret or ConfigMap that the pod names is missing in this namespace",
}
"""What to try by what a pod's trouble says; ``{run}`` is the run's name."""
TOLD_BELOW = frozenset({Reason.UNSCHEDULABLE, Reason.NO_PROGRESS})
"""What a run waits for that is said of its pods and its progress, with more."""
PROGRESS_SECONDS_MAX = 600.0
"""A living coordinator writes its progress at least every 250 s, with 5,000 runs in the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, and what to try."""

    what: str
    try_this: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read of a run. ``pods`` are its own."""

    run: Object
    pods: Sequence[PodState]
    events: Sequence[Object]
    now: datetime


def find_causes(facts: Facts) -> tuple[Finding, ...]:
    """What holds the run up, the deepest cause first; empty where nothing does."""
    return (
        *_of_wishes(facts.run),
        *_of_conditions(facts.run),
        *(finding for pod in facts.pods for finding in _of_pod(facts.run, pod)),
        *_of_absence(facts),
        *_of_progress(facts),
    )


def culprit(facts: Facts) -> str | None:
    """The pod whose log to read: the worker that does not move, or the first with trouble."""
    worker = dig(facts.run, "status.progress.stuck.worker")
    named = next((pod.name for pod in facts.pods if worker and _is_pod_of(pod, worker)), None)
    return named or next((pod.name for pod in facts.pods if pod.trouble), None)


def warnings(events: Sequence[Object], limit: int = 10) -> list[Object]:
    """The newest warnings, oldest first."""
    found = [one for one in events if one.get("type") == "Warning"]
    return sorted(found, key=event_order)[-limit:]


def event_time(event: Object) -> str:
    """When an event was seen last (RFC 3339)."""
    series = dig(event, "series.lastObservedTime")
    return (
        series
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or dig(event, "metadata.creationTimestamp")
        or ""
    )


def event_order(event: Object) -> datetime:
    """When that was, to sort by: some write whole seconds, others parts of them."""
    seen = event_time(event)
    return parse_time(seen) if seen else datetime.min.replace(tzinfo=UTC)


def merge_events(events: Sequence[Object]) -> list[tuple[Object, int]]:
    """Events in their order, each once: the last of those that say the same of the same object, and how many there were."""
    merged: dict[tuple[Any, ...], tuple[Object, int]] = {}
    for one in events:
        about = one["involvedObject"]["name"]
        key = (one.get("type"), one.get("reason"), about, one.get("message"))
        _, before = merged.pop(key, (one, 0))
        merged[key] = (one, before + max(1, _count(one)))
    return list(merged.values())


def _count(event: Object) -> int:
    return dig(event, "series.count") or event.get("count") or 1


def _is_pod_of(pod: PodState, worker: str) -> bool:
    """``actor-0`` runs in ``<run>-actors-0``; ``learner`` in the first of the learner's pods."""
    role, _, index = worker.rpartition("-")
    if not index.isdigit():
        return pod.role == worker and pod.name.endswith("-0")
    return pod.role == role and pod.name.endswith(f"-{index}")


def _of_wishes(run: Object) -> Iterator[Finding]:
    """What is so because somebody wanted it."""
    name = dig(run, "metadata.name")
    if condition(run, "Suspended").get("status") == "True":
        yield Finding(
            what="it is suspended: its state is saved, and its pods are given back",
            try_this=f"rollout resume {name}",
        )
    if condition(run, "Complete").get("status") == "True":
        yield Finding(what="it is complete", try_this="nothing")


def _of_conditions(run: Object) -> Iterator[Finding]:
    for kind in ("Stalled", "Failed"):
        found = condition(run, kind)
        if found.get("status") == "True":
            yield _explained(kind, found)
    for kind in (
        "Admitted",
        "Learning",
        "WeightsVerified",
        "LogprobsAgree",
        "Tracking",
        "CleanedUp",
    ):
        found = condition(run, kind)
        if found.get("status") == "False":
            yield _explained(kind, found)
    waits = condition(run, "Reconciling")
    if waits.get("status") == "True" and waits.get("reason") not in TOLD_BELOW:
        yield _explained("Reconciling", waits)


def _explained(kind: str, found: Mapping[str, Any]) -> Finding:
    reason = found.get("reason", "")
    action = Reason(reason).action if reason in set(Reason) else "see docs/reference/conditions.md"
    message = f": {found['message']}" if found.get("message") else ""
    return Finding(what=f"{kind}={found['status']}, {reason}{message}", try_this=action)


def _of_pod(run: Object, pod: PodState) -> Iterator[Finding]:
    if not pod.trouble:
        return
    words = f"read its last words: kubectl logs {pod.name} --previous"
    advice = next((text for word, text in ADVICE.items() if word in pod.trouble), words)
    yield Finding(
        what=f"pod {pod.name}: {pod.trouble}",
        try_this=advice.replace("{run}", dig(run, "metadata.name")),
    )


def _of_absence(facts: Facts) -> Iterator[Finding]:
    if not dig(facts.run, "status.conditions"):
        yield Finding(
            what="the run has no status",
            try_this="is the operator up, and does it serve this namespace? kubectl get pods -A -l app.kubernetes.io/name=rollout",
        )
    running = condition(facts.run, "Ready").get("reason") == "Running"
    if running and not any(pod.role == "coordinator" for pod in facts.pods):
        yield Finding(
            what="the run is said to run, and its coordinator has no pod",
            try_this="wait a minute for its StatefulSet; then look at it: kubectl describe statefulset",
        )


def _of_progress(facts: Facts) -> Iterator[Finding]:
    progress = dig(facts.run, "status.progress") or {}
    if stuck := progress.get("stuck"):
        worker = stuck.get("worker") or "no single worker"
        yield Finding(
            what=f"nothing has moved since {stuck.get('time')} ({worker}): {stuck.get('message')}",
            try_this="below is what that worker said last; it is started anew after limits.noProgressSeconds",
        )
    told = progress.get("updateTime")
    if told and _goes_on(facts.run):
        silent = (facts.now - parse_time(told)).total_seconds()
        if silent > PROGRESS_SECONDS_MAX:
            yield Finding(
                what=f"the coordinator has written no progress for {short_duration(silent)}",
                try_this="read the coordinator's log; it may have no right to write status, or not reach the API server",
            )


def _goes_on(run: Object) -> bool:
    ended = condition(run, "Finished").get("status") == "True"
    return not ended and not dig(run, "spec.suspend")
