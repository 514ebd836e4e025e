"""What has to be asked of the API server before a run queues, or starts with what the queue gave it.

Reads; never writes. What one run asks another asks too: answers are kept for a few seconds.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollout_api.conditions import Reason
from rollout_operator.errors import Forbidden, NotFound, Unavailable
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import Resource
from rollout_operator.kueue.quota import Quota
from rollout_operator.kueue.resources import FLAVORS, POD_PRIORITIES, WORKLOAD_PRIORITIES
from rollout_operator.run.plan.model import Blocked, Observed
from rollout_operator.run.plan.preconditions.checks import check_queue
from rollout_operator.run.queue.claim import Claim, build_claim
from rollout_operator.run.queue.placing import build_placement
from rollout_operator.run.render.inputs import Inputs, Placement

KEPT_SECONDS = 5.0
KEPT_MAX = 256


@dataclass(slots=True, kw_only=True)
class Asker:
    """Asks for priority classes and flavors."""

    client: KubeClient
    served: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[tuple[str, str], tuple[float, Mapping[str, Any]]] = field(
        default_factory=OrderedDict
    )

    async def check(
        self, observed: Observed, labels: Mapping[str, str], inputs: Callable[[], Inputs]
    ) -> Observed:
        """A run that nothing else is in the way of, with what it asks its queue for. Raises KubeError."""
        if not observed.queue or observed.gate is not None:
            return observed
        if (gate := check_queue(observed.queue, served=observed.kueue_served)) is not None:
            return replace(observed, gate=gate)
        claim = await self.claim(inputs(), observed.queue, labels, observed.quota)
        if isinstance(claim, Blocked):
            return replace(observed, gate=claim)
        return replace(observed, claim=claim)

    async def claim(
        self, inputs: Inputs, queue: str, labels: Mapping[str, str], quota: Quota | None
    ) -> Claim | Blocked:
        """What the run asks for now, with its priority when it is to be written. Raises KubeError."""
        claim = build_claim(inputs, queue, labels)
        asked = quota is not None and quota.digest == claim.digest
        if claim.priority is None or asked:
            return claim
        kind, name = claim.priority.kind, claim.priority.name
        resource = WORKLOAD_PRIORITIES if kind == "WorkloadPriorityClass" else POD_PRIORITIES
        try:
            live = await self._get(resource, name)
        except NotFound:
            message = f"{kind} {name!r} does not exist; create it, or name another"
            return Blocked(reason=Reason.REFERENCE_NOT_FOUND, message=message, retry_seconds=10)
        except Forbidden as error:
            return Blocked(reason=Reason.FORBIDDEN, message=str(error), retry_seconds=10)
        return replace(claim, priority=replace(claim.priority, value=live.get("value", 0)))

    async def placements(self, quota: Quota) -> dict[str, Placement]:
        """Where the queue wants each role's pods. Raises KubeError."""
        names = sorted({flavor for one in quota.assignments for flavor in one.flavors})
        flavors: dict[str, Mapping[str, Any]] = {}
        for name in names:
            try:
                flavors[name] = await self._get(FLAVORS, name)
            except NotFound as error:
                raise Unavailable(error.what, error.status, error.message) from error
        return {one.role: build_placement(quota, one, flavors) for one in quota.assignments}

    async def _get(self, resource: Resource, name: str) -> Mapping[str, Any]:
        key = (resource.plural, name)
        until, live = self._kept.get(key, (0.0, {}))
        if self.clock() < until:
            return live
        live = await self.client.get(resource, None, name)
        self._kept[key] = (self.clock() + KEPT_SECONDS, live)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return live
