"""The kinds beside runs: runtimes are ready as they are; what is not built yet is refused clearly. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rollout_api.conditions import ConditionType, Reason
from rollout_api.v1alpha1.common import Condition
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.checks import parse_runtime
from rollout_operator.run.plan.status.conditions import ConditionUpdate, Status, no, stamp, yes

NOT_BUILT = {
    "RolloutSnapshot": "snapshot objects are not supported by this version; runs keep their own anchors",
    "RolloutEndpoint": "endpoints are not supported by this version",
}


def plan_other(
    kind: str, spec: Mapping[str, Any], status: Mapping[str, Any], generation: int, now: datetime
) -> Status | None:
    """The status of an object that is no run; None when it is as it should be."""
    before = [Condition.model_validate(c) for c in status.get("conditions", ())]
    conditions = stamp(_aspects(kind, spec), before, generation, now)
    after = {"observedGeneration": generation, "conditions": conditions}
    old = sorted(status.get("conditions", ()), key=lambda one: one["type"])
    same = old == conditions and status.get("observedGeneration") == generation
    return None if same else after


def _aspects(kind: str, spec: Mapping[str, Any]) -> list[ConditionUpdate]:
    if kind in NOT_BUILT:
        return _stalled(Reason.NOT_SUPPORTED, NOT_BUILT[kind])
    runtime = parse_runtime(spec)
    if isinstance(runtime, Blocked):
        return _stalled(Reason.INVALID_SPEC, runtime.message)
    return [yes(ConditionType.READY, Reason.RUNNING, "runs may use it")]


def _stalled(reason: Reason, message: str) -> list[ConditionUpdate]:
    return [
        no(ConditionType.READY, reason, message),
        yes(ConditionType.STALLED, reason, message),
    ]
