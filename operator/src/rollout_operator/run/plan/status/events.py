"""Which events a change of status means: few, and each once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rollout_api.conditions import ConditionType, Reason
from rollout_operator.run.plan.model import EventSpec, Observed, PodDeletion

_TOLD = (
    ("Admitted", Reason.QUOTA_RESERVED),
    ("Ready", Reason.RUNNING),
    ("Suspended", Reason.SUSPENDED),
    ("Suspended", Reason.EVICTED),
)


def build_events(observed: Observed, after: Mapping[str, Any]) -> tuple[EventSpec, ...]:
    """Events of a healthy run: Starting, Running, Succeeded; with a queue, QuotaReserved.

    Each suspension and each eviction has one of its own.
    """
    before = {c.type: (c.status, c.reason) for c in observed.status.conditions}
    now = {c["type"]: c for c in after["conditions"]}
    return tuple(_notes(observed, before, now, after))


def build_final_events(observed: Observed, after: Mapping[str, Any]) -> tuple[EventSpec, ...]:
    """Events of a run that has finished: only what keeps it from being cleaned up."""
    kind = ConditionType.CLEANED_UP.value
    before = {(c.type, c.reason) for c in observed.status.conditions}
    return tuple(
        EventSpec(type="Warning", reason=Reason(one["reason"]), message=one["message"])
        for one in after["conditions"]
        if one["type"] == kind and (kind, one["reason"]) not in before
    )


def build_deletion_events(deletions: Iterable[PodDeletion]) -> tuple[EventSpec, ...]:
    """Of pods that are deleted by force: one event for each reason, such as a node that is gone.

    Nothing of it comes into the status: StatefulSets replace the pods.
    """
    forced: defaultdict[str, list[PodDeletion]] = defaultdict(list)
    for one in deletions:
        if one.force:
            forced[one.why].append(one)
    return tuple(_describe_forced(why, found) for why, found in sorted(forced.items()))


def _describe_forced(why: str, found: list[PodDeletion]) -> EventSpec:
    pods = sorted(found, key=lambda one: one.pod.name)
    return EventSpec(
        type="Warning",
        reason=Reason.POD_FORCE_DELETED,
        message=f"{why}: deleted by force: {', '.join(one.pod.name for one in pods)}",
        key=" ".join(one.pod.uid for one in pods),
    )


def _notes(
    observed: Observed,
    before: Mapping[str, tuple[str, str]],
    now: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Any],
) -> Iterator[EventSpec]:
    attempt = after.get("attempt", 0)
    if attempt > observed.status.attempt:
        message = f"run attempt {attempt} starts"
        yield EventSpec(type="Normal", reason=Reason.STARTING, message=message)
    for kind, wanted in _TOLD:
        if _became(kind, wanted.value, before, now):
            yield EventSpec(type="Normal", reason=wanted, message=now[kind]["message"])
    if _became("Finished", Reason.SUCCEEDED.value, before, now):
        message = now["Finished"]["message"]
        yield EventSpec(type="Normal", reason=Reason.SUCCEEDED, message=message)
    stalled = now.get("Stalled")
    if stalled is not None and before.get("Stalled") != ("True", stalled["reason"]):
        yield EventSpec(
            type="Warning", reason=Reason(stalled["reason"]), message=stalled["message"]
        )
    yield from _setbacks(before, now["Ready"])
    yield from _partings(before, now.get(ConditionType.REWARD_HOLDS.value))
    if (incarnation := _restarted(observed, after)) is not None:
        learner = now.get("LearnerReady", {})
        told = learner.get("reason") == Reason.RESTARTING.value
        message = learner["message"] if told else "the learner's group has started anew"
        key = f"incarnation {incarnation}"
        yield EventSpec(type="Warning", reason=Reason.RESTARTING, message=message, key=key)


def _setbacks(
    before: Mapping[str, tuple[str, str]], ready: Mapping[str, Any]
) -> Iterator[EventSpec]:
    """What the operator mends by itself and a person wants to know of all the same."""
    for reason in (Reason.NO_PROGRESS, Reason.GANG_INCOMPLETE):
        if ready["reason"] == reason.value and before.get("Ready") != ("False", reason.value):
            yield EventSpec(type="Warning", reason=reason, message=ready["message"])


def _partings(
    before: Mapping[str, tuple[str, str]], holds: Mapping[str, Any] | None
) -> Iterator[EventSpec]:
    """Reward and selecting evaluation have parted: once, until they have come together again."""
    told = ("False", Reason.REWARD_DIVERGENCE.value)
    kind = ConditionType.REWARD_HOLDS.value
    if holds is not None and (holds["status"], holds["reason"]) == told != before.get(kind):
        yield EventSpec(type="Warning", reason=Reason.REWARD_DIVERGENCE, message=holds["message"])


def _became(
    kind: str,
    reason: str,
    before: Mapping[str, tuple[str, str]],
    now: Mapping[str, Mapping[str, Any]],
) -> bool:
    condition = now.get(kind)
    return (
        condition is not None
        and condition["status"] == "True"
        and condition["reason"] == reason
        and before.get(kind) != ("True", reason)
    )


def _restarted(observed: Observed, after: Mapping[str, Any]) -> int | None:
    """The learner's incarnation when it has grown within an attempt, whoever made it grow."""
    was = observed.status.learner.incarnation if observed.status.learner else 0
    now = after.get("learner", {}).get("incarnation", 0)
    same = after.get("attempt", 0) == observed.status.attempt
    return now if same and now > was > 0 else None
