"""Asks the run's broker for sandbox pods, over the protocol that an actor speaks anyway."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from rollout.errors import InfrastructureError, RolloutError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.routes import A, Q, Route
from rollout.tools.sandbox.pods.sandbox import SandboxGrant
from rollout_api.checks.environment.tools import actors_max
from rollout_api.worker import WorkerConfig

CLAIM_SECONDS_MAX = 180.0
"""How long an episode waits for a pod: one may have to be scheduled, and its image fetched."""
ASK_SECONDS = 5.0
LOST_SECONDS = 10.0
"""How long a pod's end may take to be known."""
CALLS_MAX = 4
"""That wait at a time in one event loop: each holds a thread. A reward has a loop of its own."""


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
        self._calls: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        self._lock = threading.Lock()

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
        async with self._free():
            try:
                return await asyncio.to_thread(self._client.call, route, ask)
            except RolloutError as error:
                raise InfrastructureError(f"no word about sandbox pods: {error}") from error

    def _free(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._calls:
                self._calls[loop] = asyncio.Semaphore(CALLS_MAX)
            return self._calls[loop]


class EpisodeRoom:
    """So many episodes at a time, whole groups in the order in which they ask.

    Episodes of a group that wait for each other keep their pods: if groups had parts of what they need, none would go on.
    """

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        self._turn, self._left = asyncio.Lock(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def of(self, episodes: int) -> AsyncIterator[None]:
        """Wait for so many places, all of them at most, and have them for a block."""
        wanted = min(episodes, self._places)
        async with self._turn:
            while self._free < wanted:
                self._left.clear()
                await self._left.wait()
            self._free -= wanted
        try:
            yield
        finally:
            self._free += wanted
            self._left.set()


def episode_room(config: WorkerConfig) -> EpisodeRoom | None:
    """This actor's share of the run's sandbox pods, where episodes keep theirs while they wait; None: no bound."""
    if config.sandboxes is None or config.spec.numerics.mode == "Fast":
        return None
    return EpisodeRoom(max(1, config.sandboxes.pods_max // actors_max(config.spec)))
