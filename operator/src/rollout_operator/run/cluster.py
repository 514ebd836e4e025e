"""What is asked of the whole cluster before a run starts, once in a few seconds for all runs that start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollout_operator.errors import Forbidden
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import CSI_DRIVERS, STORAGE_CLASSES, Resource
from rollout_operator.run.plan.preconditions.storage import DEFAULT_CLASS, Class

CLUSTER_SECONDS = 5.0
"""What is asked of the whole cluster (StorageClasses, drivers) is asked once in this time."""


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Remembers answers for a moment. ``allowed``: the operator may look at the cluster at all."""

    client: KubeClient
    allowed: bool
    clock: Callable[[], float] = time.monotonic
    _asked: dict[str, tuple[float, Any]] = field(default_factory=dict)
    _asking: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def classes(self) -> tuple[Class, ...] | None:
        """Every StorageClass; None where that may not be asked."""
        found = await self._ask(STORAGE_CLASSES) if self.allowed else None
        if found is None:
            return None
        return tuple(
            Class(
                name=one["metadata"]["name"],
                provisioner=one.get("provisioner", ""),
                default=(one["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true",
            )
            for one in found
        )

    async def drivers(self) -> frozenset[str]:
        """Names of the CSI drivers; none where that may not be asked."""
        found = await self._ask(CSI_DRIVERS) or ()
        return frozenset(one["metadata"]["name"] for one in found)

    async def _ask(self, resource: Resource) -> list[Any] | None:
        """All objects of a kind of the cluster, remembered for a moment; None when that is forbidden."""
        async with self._asking.setdefault(resource.plural, asyncio.Lock()):
            until, known = self._asked.get(resource.plural, (0.0, None))
            if self.clock() < until:
                return known
            try:
                known = (await self.client.list(resource))["items"]
            except Forbidden:
                known = None
            self._asked[resource.plural] = (self.clock() + CLUSTER_SECONDS, known)
            return known
