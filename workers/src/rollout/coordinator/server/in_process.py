"""The coordinator inside this process, behind the same client: for tests and notebooks.

Runs its own event loop in a thread. Messages are encoded and decoded as over HTTP; only the socket and
the tokens are missing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager

import msgspec

from rollout.coordinator.dispatcher import Coordinator
from rollout.coordinator.status.overview import build_status
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.envelope import Envelope
from rollout.protocol.routes import ROUTES
from rollout.protocol.transport import Answer, Unreachable

STOP_SECONDS = 30.0

Open = Callable[[], Awaitable[Coordinator]]


class InProcessTransport:
    """Hands calls to a coordinator on another thread's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coordinator: Coordinator) -> None:
        self._loop = loop
        self._coordinator = coordinator

    def send(
        self, method: str, path: str, body: bytes, timeout_seconds: float, envelope: Envelope
    ) -> Answer:
        """Run the call on the coordinator's loop."""
        if method == "GET":
            work = self._status()
        else:
            work = self._coordinator.handle(ROUTES[path], envelope, body)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            status, answer = future.result(timeout_seconds)
        except (RuntimeError, CancelledError, TimeoutError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        position = self._coordinator.run.ledger.position
        return Answer(status=status, body=answer, boot=self._coordinator.boot, position=position)

    async def _status(self) -> tuple[int, bytes]:
        return 200, msgspec.json.encode(build_status(self._coordinator.run))

    def close(self) -> None:
        """Nothing to free: the coordinator outlives its clients."""


@contextmanager
def serve_in_process(open_coordinator: Open) -> Iterator[CoordinatorClient]:
    """A client of a coordinator that lives as long as the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="coordinator", daemon=True)
    thread.start()

    def do(work: Awaitable) -> object:
        async def run() -> object:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), loop).result(STOP_SECONDS)

    coordinator = do(open_coordinator())
    assert isinstance(coordinator, Coordinator)
    try:
        yield CoordinatorClient(InProcessTransport(loop, coordinator), patience_seconds=10.0)
    finally:
        do(coordinator.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_SECONDS)
        loop.close()
