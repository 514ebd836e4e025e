"""Quota from a queue: what a run waits for, when it must leave, and what its Workload is told. Pure.

Whoever runs has quota: it is asked for before the first pod, and given back only when no pod is left.
An eviction is a suspension that nobody asked for: the same order, and then the queue again.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout_api.conditions import ConditionType, Reason
from rollout_operator.controller.conditions import ConditionUpdate, no, yes
from rollout_operator.kueue.quota import Quota
from rollout_operator.run.plan.attempts import has_pods
from rollout_operator.run.plan.learner_group import find_condition
from rollout_operator.run.plan.model import REST_SECONDS, Blocked, Observed, QuotaStep

_QUEUED = frozenset({Reason.QUOTA_RESERVED.value, Reason.QUEUED.value, Reason.EVICTED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLoss:
    """Why a live attempt has to leave."""

    message: str


def lost_quota(observed: Observed) -> QuotaLoss | None:
    """Why pods may not go on; None while they may. An attempt that began without a queue has none to lose."""
    quota = observed.quota
    if quota is None:
        admitted = find_condition(observed, "Admitted")
        began = admitted is not None and admitted.reason in _QUEUED
        if not began or not observed.queue or not observed.kueue_served:
            return None
        return QuotaLoss(message="its Workload is gone")
    if quota.usable:
        return None
    if quota.deleting:
        return QuotaLoss(message=f"Workload {quota.name} is being deleted")
    for kind in ("Evicted", "Finished"):
        found = quota.condition(kind)
        if found is not None and found["status"] == "True":
            return QuotaLoss(message=f"{found['reason']}: {found.get('message', '')}")
    return QuotaLoss(message=f"Workload {quota.name} is not admitted any more")


def await_quota(observed: Observed) -> Blocked | None:
    """What a start waits for; None when nothing, or when the quota is there."""
    quota, queue = observed.quota, observed.queue
    if quota is None:
        if not queue:
            return None
        return _waits(f"queue {queue!r}: asks for quota", 5.0)
    if not queue:
        return _waits(f"gives back the quota of queue {quota.queue!r}: it names no queue now", 5.0)
    if quota.usable and observed.claim is not None and quota.digest == observed.claim.digest:
        return None
    if quota.deleting or quota.reserved:
        return _waits(_describe(quota, "waits for admission"), 5.0)
    if not quota.active:
        message = f"Workload {quota.name} is held: its spec.active is false; set it to true"
        return Blocked(reason=Reason.QUEUED, message=message, retry_seconds=REST_SECONDS)
    reserved = quota.condition("QuotaReserved") or {}
    inadmissible = reserved.get("reason") == "Inadmissible"
    message = _describe(quota, reserved.get("message") or "waits for its turn")
    return Blocked(
        reason=Reason.QUEUED, message=message, stalled=inadmissible, retry_seconds=REST_SECONDS
    )


def _describe(quota: Quota, words: str) -> str:
    return f"queue {quota.queue!r}: {words} (Workload {quota.name})"


def _waits(message: str, seconds: float) -> Blocked:
    return Blocked(reason=Reason.QUEUED, message=message, stalled=False, retry_seconds=seconds)


def admitted_condition(observed: Observed) -> ConditionUpdate:
    """Of a live attempt: with or without a queue."""
    kind, quota = ConditionType.ADMITTED, observed.quota
    if quota is not None:
        return yes(kind, Reason.QUOTA_RESERVED, f"queue {quota.queue!r} has given the quota")
    before = find_condition(observed, kind.value)
    if before is not None and before.reason == Reason.QUOTA_RESERVED.value:
        return yes(kind, Reason.QUOTA_RESERVED, before.message)
    return yes(kind, Reason.NO_QUEUE, "the run names no queue")


def refused_condition(gate: Blocked) -> list[ConditionUpdate]:
    """Of a run that waits for its queue."""
    waits = gate.reason in {Reason.QUEUED, Reason.KUEUE_NOT_INSTALLED}
    return [no(ConditionType.ADMITTED, gate.reason, gate.message)] if waits else []


def kept_suspension(observed: Observed) -> list[ConditionUpdate]:
    """A run whose pods are gone stays so until an attempt starts: the next one has a new number."""
    before = find_condition(observed, "Suspended")
    if before is None or before.status != "True":
        return []
    reason = Reason.EVICTED if before.reason == Reason.EVICTED.value else Reason.SUSPENDED
    return [yes(ConditionType.SUSPENDED, reason, before.message)]


# -- what the Workload is told -----------------------------------------------------------------------


def plan_step(
    observed: Observed, *, alive: bool, ready: bool | None = None, over: bool = False
) -> QuotaStep | None:
    """The next write on the Workload; None when it says what is so.

    ``alive``: an attempt's children may have pods. ``ready``: of a running attempt, whether all its
    pods are. ``over``: the time to live of a finished run is over.
    """
    quota = observed.quota
    if (done := find_condition(observed, "Finished")) is not None and done.status == "True":
        return _step_finished(observed, succeeded=done.reason == "Succeeded", over=over)
    if alive:
        return (
            _step_ready(quota, ready=ready)
            if quota and quota.usable and ready is not None
            else None
        )
    wanted = observed.claim is not None and not observed.suspend and observed.gate is None
    if quota is None:
        return QuotaStep(verb="Ask") if wanted else None
    return None if has_pods(observed) else _step_waiting(observed, quota, wanted=wanted)


def _step_waiting(observed: Observed, quota: Quota, *, wanted: bool) -> QuotaStep | None:
    """Of a run without pods: the Workload asks for what the run would start with, or goes."""
    if quota.deleting:
        return QuotaStep(verb="LetGo") if quota.held else None
    if not wanted or quota.holds("Finished"):
        return QuotaStep(verb="GiveUp")
    if quota.holds("Evicted") and quota.reserved:
        return QuotaStep(verb="Requeue")
    assert observed.claim is not None
    if quota.digest == observed.claim.digest:
        return None
    return QuotaStep(verb="GiveUp" if quota.reserved else "Change")


def _step_finished(observed: Observed, *, succeeded: bool, over: bool) -> QuotaStep | None:
    quota = observed.quota
    if quota is None or has_pods(observed):
        return None
    if quota.deleting or quota.holds("Finished"):
        if over and not quota.deleting:
            return QuotaStep(verb="GiveUp")
        return QuotaStep(verb="LetGo") if quota.held else None
    ready = find_condition(observed, "Ready")
    return QuotaStep(
        verb="Finish",
        holds=True,
        reason="Succeeded" if succeeded else "Failed",
        message=ready.message if ready is not None else "",
    )


def _step_ready(quota: Quota, *, ready: bool) -> QuotaStep | None:
    """The condition PodsReady, with the reasons that Kueue's own jobs give."""
    before = quota.condition("PodsReady") or {"status": "False", "reason": ""}
    was = before["reason"] in {"WaitForRecovery", "Recovered"}
    if ready:
        reason = "Recovered" if was else "Started"
        message = "All pods reached readiness and the workload is running"
    elif before["status"] == "True" or before["reason"] == "WaitForRecovery":
        reason = "WaitForRecovery"
        message = "At least one pod has failed, waiting for recovery"
    else:
        reason, message = "WaitForStart", "Not all pods are ready or succeeded"
    if (before["status"], before["reason"]) == (str(ready), reason):
        return None
    return QuotaStep(verb="PodsReady", holds=ready, reason=reason, message=message)
