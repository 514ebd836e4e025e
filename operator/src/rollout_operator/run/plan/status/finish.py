"""A plan with the status that it leads to: counts, conditions and events, written only when they say something new. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from rollout_api.names import Role
from rollout_operator.controller.conditions import ConditionUpdate, Status, stamp
from rollout_operator.run.attempt import ScaleState
from rollout_operator.run.plan.model import Observed, Plan
from rollout_operator.run.plan.status.conditions import (
    build_role_status,
    cluster_conditions,
    own_part,
)
from rollout_operator.run.plan.status.events import build_events, build_final_events
from rollout_operator.run.plan.status.filled import describe_filled
from rollout_operator.run.plan.status.snapshots import describe_snapshots

_COUNTS: tuple[tuple[str, Role], ...] = (
    ("coordinator", "coordinator"),
    ("learner", "learner"),
    ("actors", "actor"),
)


def finish_plan(
    observed: Observed,
    plan: Plan,
    aspects: list[ConditionUpdate],
    now: datetime,
    *,
    live: Mapping[Role, ScaleState] | None = None,
    keep_counts: bool = False,
    frozen: bool = False,
    **fields: Any,
) -> Plan:
    """The plan with its status, when that differs from what is there, and the events it means.

    ``frozen``: the run has finished; what its end has said stays, and what is left of its pods is counted.
    """
    before = own_part(observed.status.model_dump(mode="json", by_alias=True, exclude_none=True))
    status = {**before, **describe_snapshots(observed), **fields}
    if not frozen and observed.spec is not None:
        status["resolved"] = describe_filled(observed)
    status["observedGeneration"] = observed.generation
    said = aspects if frozen else [*aspects, *cluster_conditions(observed)]
    status["conditions"] = stamp(said, observed.status.conditions, observed.generation, now)
    if frozen:
        status |= _count_leftovers(observed, before)
    elif not keep_counts and observed.blocked is None:
        attempt = status.get("attempt") or observed.status.attempt
        for field, role in _COUNTS:
            status[field] = build_role_status(observed, role, live or {}, attempt)
    after = own_part(status)
    if _same(before, after):
        return plan
    notes = build_final_events(observed, after) if frozen else build_events(observed, after)
    return replace(plan, status=after, notes=notes)


def _count_leftovers(observed: Observed, before: Mapping[str, Any]) -> Status:
    """Counts of the pods that are left, of which none is wanted; restarts stay as the end has said them.

    They become no more: who sees more of them than were left has not been told yet that they went.
    """
    return {
        field: {**before[field], **_count_left(observed, role, before[field])}
        for field, role in _COUNTS
        if field in before
    }


def _count_left(observed: Observed, role: Role, before: Mapping[str, Any]) -> Status:
    left = observed.pods_of(role)
    current = [pod for pod in left if pod.attempt == observed.status.attempt]
    ready = sum(pod.ready and not pod.deleting for pod in current)
    return {
        "ready": min(ready, before.get("ready", ready)),
        "desired": 0,
        "replicas": min(len(left), before.get("replicas", len(left))),
    }


def _same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return _sorted(before) == _sorted(after)


def _sorted(status: Mapping[str, Any]) -> Status:
    conditions = sorted(status.get("conditions", ()), key=lambda one: one["type"])
    counts = {
        name: {key: value for key, value in status[name].items() if value}
        for name, _ in _COUNTS
        if name in status
    }
    plain = {name: value for name, value in status.items() if value not in (0, None)}
    return {**plain, **counts, "conditions": conditions}
