"""The kinds without children: a runtime is valid, or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from rollout_api.conditions import ConditionType, Reason
from rollout_api.v1alpha1.common import Condition
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.conditions import ConditionUpdate, Status, no, stamp, yes
from rollout_operator.controller.queue import Key, KeyQueue

FindFault = Callable[[Mapping[str, Any], str], str | None]
"""Why a run could not use a runtime of this spec and kind; None when it could."""


class Send(Protocol):
    """Writes the status of the object that was looked at."""

    async def __call__(self, stored: Stored, status: Mapping[str, Any]) -> None:
        """Raises KubeError."""


@dataclass(slots=True, kw_only=True)
class StatusController:
    """Of a kind that has no children: all that is done for it is to say what is so."""

    kind: str
    store: Store
    queue: KeyQueue
    send: Send
    find_fault: FindFault
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    async def reconcile(self, key: Key) -> float | None:
        """Say whether the object is of use. Raises KubeError."""
        stored = self.store.find(key)
        if stored is None:
            self.queue.forget(key)
            return None
        if stored.deleting:
            return None
        spec, before = json.loads(stored.spec), stored.read_status()
        aspects = judge(key.kind, spec, self.find_fault)
        status = plan_other(aspects, before, stored.generation, self.clock())
        if status is not None:
            await self.send(stored, status)
        self.queue.forgive(key)
        return None


def plan_other(
    aspects: Iterable[ConditionUpdate], status: Mapping[str, Any], generation: int, now: datetime
) -> Status | None:
    """The status of an object that is no run; None when it is as it should be."""
    before = [Condition.model_validate(c) for c in status.get("conditions", ())]
    conditions = stamp(aspects, before, generation, now)
    after = {"observedGeneration": generation, "conditions": conditions}
    old = sorted(status.get("conditions", ()), key=lambda one: one["type"])
    same = old == conditions and status.get("observedGeneration") == generation
    return None if same else after


def judge(kind: str, spec: Mapping[str, Any], find_fault: FindFault) -> list[ConditionUpdate]:
    """Whether a runtime is of use, and why not."""
    fault = find_fault(spec, kind)
    if fault is not None:
        return _stalled(Reason.INVALID_SPEC, fault)
    return [yes(ConditionType.READY, Reason.VALID, "runs may use it")]


def _stalled(reason: Reason, message: str) -> list[ConditionUpdate]:
    return [
        no(ConditionType.READY, reason, message),
        yes(ConditionType.STALLED, reason, message),
    ]
