"""So many calls at a time, made from threads and event loops alike: who ends a call lets the next one in, in order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future


class CallSlots:
    """``num`` of them. Who took one gives it back by ``release``."""

    def __init__(self, num: int) -> None:
        self._lock = threading.Lock()
        self._free = num
        self._waiting: deque[Future[None]] = deque()

    def take(self, seconds: float) -> None:
        """Wait in a thread. Raises TimeoutError."""
        slot = self._join()
        try:
            slot.result(seconds)
        except BaseException:
            self._leave(slot)
            raise

    async def take_soon(self, seconds: float) -> None:
        """Wait in an event loop, which is not blocked. Raises TimeoutError."""
        slot = self._join()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wrap_future(slot)
        except BaseException:
            self._leave(slot)
            raise

    def release(self) -> None:
        """Let the next one in."""
        with self._lock:
            while self._waiting:
                slot = self._waiting.popleft()
                if slot.set_running_or_notify_cancel():
                    slot.set_result(None)
                    return
            self._free += 1

    def _join(self) -> Future[None]:
        slot = Future[None]()
        with self._lock:
            if self._free:
                self._free -= 1
                slot.set_result(None)
            else:
                self._waiting.append(slot)
        return slot

    def _leave(self, slot: Future[None]) -> None:
        """Who gives up passes on what it was given in the meantime."""
        if not slot.cancel():
            self.release()
