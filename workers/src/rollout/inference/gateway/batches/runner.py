"""The batches of a gateway, each in its turn: one of a key at a time, the oldest first, of so many keys at once."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from rollout.errors import SpecError
from rollout.inference.gateway.batches.objects import FileBatch
from rollout.inference.gateway.batches.store import FileStore
from rollout.inference.gateway.batches.work import BatchWork
from rollout.inference.gateway.state import GatewayState

log = logging.getLogger(__name__)

KEYS_AT_ONCE = 8
LOOK_SECONDS = 1.0
AGAIN_SECONDS = 5.0
"""After a failure, such as a full disk: its batch goes on from what it has written."""


class BatchRunner:
    """What works on the batches of a folder. ``wake`` it when there is a new one."""

    def __init__(self, state: GatewayState) -> None:
        self.store = FileStore(Path(state.settings.files))
        self._state = state
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._held = False

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    def hold(self) -> None:
        """Begin nothing more: what is under way may end."""
        self._held = True

    async def run(self) -> None:
        """The duty of batches: for as long as the process lives."""
        try:
            while True:
                self._begin()
                self._woken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._woken.wait()
        finally:
            await self._end_all()

    async def close(self) -> None:
        """Cut what is under way, which goes on at the next start, and let go of the folder."""
        self.hold()
        await self._end_all()
        self.store.close()

    def _begin(self) -> None:
        for owner in [owner for owner, task in self._tasks.items() if task.done()]:
            del self._tasks[owner]
        if self._held:
            return
        for batch in self.store.open_batches():
            if len(self._tasks) >= KEYS_AT_ONCE:
                return
            if batch.owner not in self._tasks:
                self._tasks[batch.owner] = asyncio.create_task(self._conduct(batch))

    async def _conduct(self, batch: FileBatch) -> None:
        work = BatchWork(state=self._state, store=self.store, batch=batch, held=lambda: self._held)
        try:
            await work.run()
        except Exception:
            # The outermost place of a batch: whatever was not foreseen is told, and it goes on from what it has written.
            log.exception("batch failed, going on with it in a while batch=%s", batch.id)
            await asyncio.sleep(AGAIN_SECONDS)
        self.wake()

    async def _end_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()


def open_batches(state: GatewayState) -> BatchRunner | None:
    """What a gateway's settings say of files; None where it keeps none. Raises SpecError."""
    if not state.settings.files:
        return None
    if state.settings.is_open:
        raise SpecError("files: belong to keys, and this gateway asks for none")
    return BatchRunner(state)
