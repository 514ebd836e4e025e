"""Asks the run's broker for sandbox pods, over the protocol that an actor speaks anyway."""

from __future__ import annotations

import asyncio
import secrets
import time

from rollout.errors import InfrastructureError, RolloutError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.routes import A, Q, Route
from rollout.tools.sandbox.pods.sandbox import SandboxGrant

CLAIM_SECONDS_MAX = 180.0
"""How long an episode waits for a pod: one may have to be scheduled, and its image fetched."""
ASK_SECONDS = 5.0
LOST_SECONDS = 10.0
"""How long a pod's end may take to be known."""
CALLS_MAX = 4
"""That wait at a time: each holds a thread."""


def as_grant(given: m.SandboxClaimed) -> SandboxGrant:
    """The pod that a broker's answer gives."""
    return SandboxGrant(
        name=given.name,
        address=given.address,
        port=given.port,
        secret=given.secret,
        key=given.key,
    )


class RunSandboxes:
    """The broker of the run, as ``SandboxBroker``."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client
        self._calls = asyncio.Semaphore(CALLS_MAX)

    async def claim(self) -> SandboxGrant:
        """A pod that is ready. Raises InfrastructureError where none comes in time."""
        ask = m.ClaimSandbox(claim=secrets.token_hex(16), wait_seconds=ASK_SECONDS)
        try:
            return await self._wait_for(ask)
        except BaseException:
            await self._call(routes.RELEASE_SANDBOX, m.ReleaseSandbox(claim=ask.claim))
            raise

    async def _wait_for(self, ask: m.ClaimSandbox) -> SandboxGrant:
        until = time.monotonic() + CLAIM_SECONDS_MAX
        while True:
            given = await self._call(routes.CLAIM_SANDBOX, ask)
            if given.name:
                return as_grant(given)
            if time.monotonic() > until:
                raise InfrastructureError(
                    f"no sandbox pod within {CLAIM_SECONDS_MAX:g} s: {given.reason}"
                )

    async def release(self, name: str, *, lost: bool) -> bool:
        """It is not needed any more. Of a ``lost`` one: whether it was ended because it was past its memory."""
        seconds = LOST_SECONDS if lost else 0.0
        ask = m.ReleaseSandbox(name=name, lost=lost, wait_seconds=seconds)
        return (await self._call(routes.RELEASE_SANDBOX, ask)).past_memory

    async def _call(self, route: Route[Q, A], ask: Q) -> A:
        async with self._calls:
            try:
                return await asyncio.to_thread(self._client.call, route, ask)
            except RolloutError as error:
                raise InfrastructureError(f"no word about sandbox pods: {error}") from error
