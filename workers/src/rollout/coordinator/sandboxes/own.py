"""Sandbox pods for the coordinator's pod itself, before there is a run that anybody else could ask: servers of tools are asked for theirs.

A pod that is left over here is removed by the coordinator's own broker, at its first look.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace

from rollout.coordinator.sandboxes.broker import LOOK_SECONDS, PodBroker, build_broker
from rollout.errors import InfrastructureError
from rollout.tools.sandbox.pods.sandbox import PodSandboxes, SandboxGrant, program_memory
from rollout_api.worker import WorkerOrder

CLAIM_SECONDS_MAX = 180.0
"""As long as an episode waits for one."""


class OwnSandboxes:
    """A broker, as ``SandboxBroker``; nobody else looks after its pool."""

    def __init__(self, broker: PodBroker) -> None:
        self._broker = broker
        bounds = replace(broker.pool.bounds, warm=0)
        self._broker.pool.bounds = bounds

    async def claim(self) -> SandboxGrant:
        """A pod that is ready. Raises InfrastructureError where none comes in time."""
        claim, until = secrets.token_hex(16), time.monotonic() + CLAIM_SECONDS_MAX
        pool = self._broker.pool
        while True:
            pod = pool.grant(claim, time.monotonic())
            if pod is not None and pod.seen is not None:
                return SandboxGrant(
                    name=pod.name,
                    address=pod.seen.address,
                    port=self._broker.order.port,
                    secret=pod.secret,
                    key=pod.key,
                )
            if time.monotonic() > until:
                pool.withdraw(claim, time.monotonic())
                raise InfrastructureError(
                    f"no sandbox pod within {CLAIM_SECONDS_MAX:g} s: {pool.reason()}"
                )
            await self._broker.look(time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)

    async def release(self, name: str, *, lost: bool) -> bool:
        """It is not needed any more; how it ended is not asked."""
        del lost
        self._broker.pool.release(name)
        await self._broker.look(time.monotonic())
        return False


def own_sandboxes(order: WorkerOrder) -> PodSandboxes | None:
    """The maker of this pod's own sandboxes; None where the run has none. Raises SpecError."""
    broker = build_broker(order)
    if broker is None:
        return None
    return PodSandboxes(OwnSandboxes(broker), program_memory(broker.order.memory))
