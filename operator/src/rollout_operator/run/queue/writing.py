"""Bodies of merge patches on a Workload, as Kueue's own jobs write them. Pure.

Every patch names the UID and the version that was seen, so that nothing is written over what Kueue
has decided meanwhile. Lists are replaced whole, which is why conditions are given whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rollout_api import names
from rollout_operator.controller.times import parse_time, render_time
from rollout_operator.kueue.quota import Document, Quota
from rollout_operator.run.queue.claim import Claim, build_spec

Body = dict[str, Any]
Change = tuple[bool, str, str]
"""Whether a condition holds, its reason, its message."""
REQUEUED_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Why a Workload was evicted and is in the queue again at once; otherwise Kueue says when."""
MESSAGE_LENGTH_MAX = 32768


def build_change(quota: Quota, claim: Claim) -> Body:
    """Ask for something else, while nothing is reserved."""
    none = {"priorityClassRef": None, "priority": None}
    body = _body(quota, spec={**none, **build_spec(claim)})
    body["metadata"]["annotations"] = {names.ANNOTATION_APPLIED: claim.digest}
    return body


def build_let_go(quota: Quota) -> Body:
    """Take our finalizer away, and no other."""
    body = _body(quota)
    others = [one for one in quota.finalizers if one != names.FINALIZER_QUOTA]
    body["metadata"]["finalizers"] = others
    return body


def build_requeue(quota: Quota, now: datetime) -> Body:
    """Give the quota back after an eviction, and stand in the queue again."""
    evicted = quota.condition("Evicted") or {}
    reason, message = evicted.get("reason", "Evicted"), evicted.get("message", "")
    changes: dict[str, Change] = {
        "Requeued": (reason in REQUEUED_AT_ONCE, reason, message),
        "QuotaReserved": (False, "Pending", message),
        "Admitted": (False, "NoReservation", "The workload has no reservation"),
    }
    if quota.condition("PodsReady") is not None:
        waits = "Not all pods are ready or succeeded"
        changes["PodsReady"] = (False, "WaitForStart", waits)
    status: Body = {"admission": None, "conditions": _changed(quota, changes, now)}
    if (seconds := _admitted_seconds(quota, now)) is not None:
        status["accumulatedPastExecutionTimeSeconds"] = (quota.past_seconds or 0) + seconds
    return _body(quota, status=status)


def _admitted_seconds(quota: Quota, now: datetime) -> int | None:
    admitted = quota.condition("Admitted")
    if admitted is None or admitted["status"] != "True":
        return None
    return max(0, int((now - parse_time(admitted["lastTransitionTime"])).total_seconds()))


def build_condition(quota: Quota, kind: str, change: Change, now: datetime) -> Body:
    """One condition, and all others as they are."""
    return _body(quota, status={"conditions": _changed(quota, {kind: change}, now)})


def _body(quota: Quota, **parts: Any) -> Body:
    meta = {"uid": quota.uid, "resourceVersion": str(quota.version)}
    return {"metadata": meta, **parts}


def _changed(quota: Quota, changes: Mapping[str, Change], now: datetime) -> list[Document]:
    """All conditions with some changed; a time changes only with its status."""
    kept = [one for one in quota.conditions if one["type"] not in changes]
    for kind, (holds, reason, message) in changes.items():
        before = quota.condition(kind)
        status = str(holds)
        same = before is not None and before["status"] == status
        kept.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message[:MESSAGE_LENGTH_MAX],
                "lastTransitionTime": before["lastTransitionTime"]
                if before is not None and same
                else render_time(now),
                "observedGeneration": quota.generation,
            }
        )
    return kept
