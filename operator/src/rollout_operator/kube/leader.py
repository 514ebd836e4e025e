"""One of the replicas writes: the one that holds the Lease (12 s to live, renewed every second).

The age of the Lease is judged by our own clock from when we last renewed it, and asked before every
write: a process that was frozen finds that it is no leader any more before it can do harm. Who reads there
that another one holds it leads no more, whatever its own clock says.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.errors import Conflict, KubeError, NotFound, NotLeader
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import LEASES

log = logging.getLogger(__name__)

LEASE_NAME = "rollout-operator"
LEASE_SECONDS = 12
RENEW_SECONDS_MAX = 8.0
TRY_SECONDS_MAX = 3.0
"""A call that hangs is given up: there is time for another before the Lease is too old."""
RETRY_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class Leader:
    """Takes and keeps the Lease; ``require`` raises NotLeader when it is not ours for certain."""

    client: KubeClient
    namespace: str
    identity: str
    enabled: bool = True
    clocks: Clocks = CLOCKS
    leading: asyncio.Event = field(default_factory=asyncio.Event)
    _renewed_at: float = float("-inf")
    _held: dict[str, Any] | None = None
    _seen: tuple[Any, float] = (None, 0.0)

    def is_leader(self) -> bool:
        """Whether the Lease is ours and young enough."""
        return not self.enabled or self.clocks.monotonic() - self._renewed_at < RENEW_SECONDS_MAX

    def require(self) -> None:
        """Raises NotLeader."""
        if not self.is_leader():
            raise NotLeader(f"the Lease {LEASE_NAME} is not held by {self.identity}")

    async def run(self) -> None:
        """Hold the Lease for as long as possible; until cancelled."""
        while True:
            try:
                await asyncio.wait_for(self.step(), TRY_SECONDS_MAX)
            except (KubeError, TimeoutError) as error:
                log.warning("lease not renewed error=%s: %s", type(error).__name__, error)
            if self.is_leader():
                self.leading.set()
            elif self.leading.is_set():
                log.warning("lease lost identity=%s", self.identity)
                self.leading.clear()
            await asyncio.sleep(RETRY_SECONDS)

    async def step(self) -> None:
        """Renew the Lease, take it when it is free or its holder is silent, or look at it."""
        if not self.enabled:
            return
        began = self.clocks.monotonic()
        held, self._held = self._held, None
        try:
            lease = held or await self.client.get(LEASES, self.namespace, LEASE_NAME)
        except NotFound:
            await self._create(began)
            return
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in {"", self.identity}:
            self._step_down()
            if not self._silent(spec):
                return
        changes = spec.get("leaseTransitions", 0) + (holder != self.identity)
        acquired = spec.get("acquireTime") if holder == self.identity else None
        lease["spec"] = self._spec(changes, acquired)
        try:
            self._held = await self.client.replace(lease, LEASES, manager=LEASE_NAME)
        except Conflict:
            return
        if holder != self.identity:
            log.info("lease taken identity=%s before=%s", self.identity, holder)
        self._renewed_at = began

    async def release(self) -> None:
        """Give the Lease back on the way out, so that the next leader need not wait."""
        if not self.enabled or not self.is_leader():
            return
        try:
            lease = await self.client.get(LEASES, self.namespace, LEASE_NAME)
            if lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self.client.replace(lease, LEASES, manager=LEASE_NAME)
        except KubeError as error:
            log.warning("lease not given back error=%s", error)
        self._step_down()

    def _step_down(self) -> None:
        """Lead no more, whatever our clock says of the last renewal."""
        self._renewed_at = float("-inf")

    async def _create(self, began: float) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE_NAME, "namespace": self.namespace},
            "spec": self._spec(0, None),
        }
        try:
            await self.client.create_unguarded(body, LEASES, manager=LEASE_NAME)
        except Conflict:
            return
        self._renewed_at = began

    def _silent(self, spec: dict[str, Any]) -> bool:
        """Whether the holder has not renewed for the Lease's time, by our own clock."""
        mark = (spec.get("holderIdentity"), spec.get("renewTime"))
        if mark != self._seen[0]:
            self._seen = (mark, self.clocks.monotonic())
            return False
        return self.clocks.monotonic() - self._seen[1] >= spec.get(
            "leaseDurationSeconds", LEASE_SECONDS
        )

    def _spec(self, changes: int, acquired: str | None) -> dict[str, Any]:
        now = self.clocks.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": changes,
        }
