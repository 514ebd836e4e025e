"""The learner's group: when it starts anew, when it gives its devices back. Pure.

A group start changes the template's incarnation label and nothing else; every pod of an older
incarnation is then deleted. Pods that are only late are waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256

from rollout_api.conditions import Reason
from rollout_api.v1alpha1.common import Condition
from rollout_api.v1alpha1.run_status import Progress
from rollout_operator.cache.children import Ended, Pod, Workload
from rollout_operator.controller.times import parse_time, render_time
from rollout_operator.run.attempt import ScaleState
from rollout_operator.run.plan.attempts import stateful_set
from rollout_operator.run.plan.model import Observed

FREE_RESTARTS = 3
RESTART_SECONDS_MAX = 300.0
HOLD_SECONDS_MIN = 30.0
HOLD_SECONDS_MAX = 600.0
WAITS = "waits before the next try: "
"""Said of a group that shall start anew and has not yet: the status remembers the trouble, its pods may not."""
LEARNER = "learner"
"""The one name of the learner among a run's workers, whatever its pods are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCause:
    """Why the group must start anew; a disruption costs no retry. ``ended``: the container that did."""

    message: str
    disruption: bool
    ended: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The learner as observed. ``pods`` are of the current incarnation and not going."""

    workload: Workload
    pods: tuple[Pod, ...]
    num_wanted: int
    was_complete: bool
    restart_cause: RestartCause | None = None

    @property
    def complete(self) -> bool:
        """Every rank's pod runs."""
        return self.num_wanted == sum(pod.ready for pod in self.pods)

    @property
    def num_failures(self) -> int:
        """Group starts that consumed a retry."""
        return max(0, self.workload.incarnation - self.workload.first - self.workload.disruptions)


def observe_group(observed: Observed, attempt: int) -> Group | None:
    """The learner's group; None without a learner in this attempt."""
    child = stateful_set(observed, "learner")
    if child is None or child.workload is None or observed.spec is None:
        return None
    if child.attempt != attempt:
        return None
    workload = child.workload
    mine = tuple(
        pod
        for pod in observed.pods_of("learner")
        if pod.attempt == attempt and pod.incarnation == workload.incarnation
    )
    ready_at = _ready_since(observed, workload.incarnation)
    group = Group(
        workload=workload,
        pods=tuple(pod for pod in mine if not pod.deleting),
        num_wanted=observed.spec.learner.nodes,
        was_complete=ready_at is not None,
    )
    if workload.replicas == 0:
        return group
    return replace(group, restart_cause=_restart_cause(observed, group, mine, ready_at, attempt))


def _ready_since(observed: Observed, incarnation: int) -> datetime | None:
    status = observed.status
    if status.learner is None or status.learner.incarnation != incarnation:
        return None
    ready = find_condition(observed, "LearnerReady")
    return parse_time(ready.last_transition_time) if ready and ready.status == "True" else None


def find_condition(observed: Observed, kind: str) -> Condition | None:
    """A condition of the status as it is."""
    return next((c for c in observed.status.conditions if c.type == kind), None)


def _restart_cause(
    observed: Observed,
    group: Group,
    mine: tuple[Pod, ...],
    ready_at: datetime | None,
    attempt: int,
) -> RestartCause | None:
    for pod in mine:
        if pod.disrupted:
            return RestartCause(message=f"pod {pod.name} was disrupted", disruption=True)
        if pod.phase == "Failed" or (pod.restarts and pod.ended is not None):
            return RestartCause(message=describe_end(pod), disruption=False, ended=pod.ended)
    progress = observed.status.progress
    own = progress is not None and progress.attempt in {0, attempt}
    reported = progress.group if progress is not None and own else None
    if (
        reported is not None
        and reported.stage == "Failed"
        and reported.incarnation == group.workload.incarnation
    ):
        return RestartCause(message=reported.message or "a rank failed", disruption=False)
    if ready_at is None:
        return _remembered(observed, group)
    if own and (stuck := _stuck(progress, group)):
        return RestartCause(message=stuck, disruption=False)
    if len(group.pods) < group.num_wanted:
        return RestartCause(message="a learner pod is gone", disruption=True)
    late = next((pod for pod in group.pods if pod.created > ready_at), None)
    return RestartCause(message=f"pod {late.name} was replaced", disruption=True) if late else None


def _remembered(observed: Observed, group: Group) -> RestartCause | None:
    """A trouble that was told of and not acted on yet: a pod that was replaced since then shows it no more."""
    told, ready = observed.status.learner, find_condition(observed, "LearnerReady")
    if told is None or told.incarnation != group.workload.incarnation or ready is None:
        return None
    if ready.reason != Reason.RESTARTING.value or not ready.message.startswith(WAITS):
        return None
    return RestartCause(message=ready.message.removeprefix(WAITS), disruption=True)


def _stuck(progress: Progress | None, group: Group) -> str:
    """What the coordinator says of a learner that does not move, when it means these pods."""
    found = progress.stuck if progress is not None else None
    if found is None or found.worker != LEARNER or not group.pods:
        return ""
    meant = max(pod.created for pod in group.pods) < parse_time(found.time)
    return found.message if meant else ""


def describe_end(pod: Pod) -> str:
    """Which container of a pod ended, and how."""
    if pod.ended is None:
        return f"pod {pod.name} failed"
    ended = pod.ended
    why = f" ({ended.reason})" if ended.reason else ""
    words = ended.message.strip().splitlines()
    said = f": {words[-1]}" if words else ""
    return f"pod {pod.name}: {ended.container} ended with code {ended.exit_code}{why}{said}"


def plan_group(
    observed: Observed, group: Group, *, may_start: bool, now: datetime
) -> tuple[ScaleState, datetime | None]:
    """The learner's live fields, and when to look again."""
    work = group.workload
    keep = as_live(work)
    if work.replicas == 0:
        return (_start(group, keep), None) if may_start else (keep, None)
    if group.restart_cause is not None:
        return _start_anew(group, keep, now)
    assert observed.spec is not None
    waits = not group.complete and not group.was_complete and group.pods
    if not waits or _has_quota(observed):
        return replace(keep, replicas=group.num_wanted), None
    oldest = min(pod.created for pod in group.pods)
    due = oldest + timedelta(seconds=observed.spec.limits.gang_seconds)
    if now < due:
        return replace(keep, replicas=group.num_wanted), due
    return _hold(observed, keep, now), None


def _has_quota(observed: Observed) -> bool:
    """Whether a queue let the whole run in: its quota is the gang's, and Kueue takes it back when that takes too long."""
    if observed.quota is not None:
        return True
    admitted = find_condition(observed, "Admitted")
    return admitted is not None and admitted.reason == Reason.QUOTA_RESERVED.value


def as_live(work: Workload) -> ScaleState:
    """The live fields of a StatefulSet as they are."""
    return ScaleState(
        replicas=work.replicas,
        incarnation=work.incarnation,
        first=work.first,
        disruptions=work.disruptions,
        gang_tries=work.gang_tries,
        hold_until=work.hold_until,
    )


def first_live(observed: Observed) -> ScaleState:
    """A learner that is to be made, or made anew for an attempt: beyond every incarnation there was."""
    child = stateful_set(observed, "learner")
    told = observed.status.learner.incarnation if observed.status.learner else 0
    seen = child.workload.incarnation if child is not None and child.workload is not None else 0
    first = max(told, seen) + 1
    return ScaleState(replicas=0, incarnation=first, first=first)


def _start(group: Group, keep: ScaleState) -> ScaleState:
    """Let the group's pods go; after a hold they are a new incarnation that costs no retry."""
    if not keep.hold_until:
        return replace(keep, replicas=group.num_wanted, incarnation=max(1, keep.incarnation))
    return replace(
        keep,
        replicas=group.num_wanted,
        incarnation=keep.incarnation + 1,
        disruptions=keep.disruptions + 1,
        hold_until="",
    )


def _start_anew(
    group: Group, keep: ScaleState, now: datetime
) -> tuple[ScaleState, datetime | None]:
    assert group.restart_cause is not None
    oldest = min((pod.created for pod in group.pods), default=now)
    due = oldest + timedelta(seconds=_restart_seconds(group.num_failures))
    if now < due:
        return keep, due
    disruptions = keep.disruptions + (1 if group.restart_cause.disruption else 0)
    return replace(keep, incarnation=keep.incarnation + 1, disruptions=disruptions), None


def _restart_seconds(num_failures: int) -> float:
    """The first three at once, then doubling from 10 s after the last start."""
    if num_failures < FREE_RESTARTS:
        return 0.0
    return min(RESTART_SECONDS_MAX, 10.0 * 2 ** min(num_failures - FREE_RESTARTS, 10))


def _hold(observed: Observed, keep: ScaleState, now: datetime) -> ScaleState:
    wait = hold_seconds(observed.uid, keep.gang_tries)
    return replace(
        keep,
        replicas=0,
        gang_tries=keep.gang_tries + 1,
        hold_until=render_time(now + timedelta(seconds=wait)),
    )


def hold_seconds(uid: str, num_tries: int) -> float:
    """Back-off of an incomplete group, doubling from 30 s to 10 min, spread by the run's UID."""
    full = min(HOLD_SECONDS_MAX, HOLD_SECONDS_MIN * 2 ** min(num_tries, 10))
    spread = sha256(f"{uid}/{num_tries}".encode()).digest()[0] / 255
    return full * (0.5 + spread)


def held_until(observed: Observed) -> datetime | None:
    """The end of a hold under way, or over but with pods not started yet; None without one."""
    child = stateful_set(observed, "learner")
    if child is None or child.workload is None:
        return None
    work = child.workload
    return parse_time(work.hold_until) if work.hold_until and work.replicas == 0 else None
