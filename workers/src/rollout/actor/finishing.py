"""Groups that have ended are scored and submitted while others are still drawn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from rollout.actor.runner import PlayedTask


class Finishing:
    """What becomes of groups that have ended, in the order of their ends, while others are drawn.

    One call after the other, each with all that has ended meanwhile. Bounded by the groups in hand.
    """

    def __init__(self, finish: Callable[[Sequence[PlayedTask], float], Awaitable[None]]) -> None:
        self._finish = finish
        self._start = time.monotonic()
        self._waiting: list[PlayedTask] = []
        self._working: asyncio.Task[None] | None = None
        self.task_ids: set[str] = set()

    def begin(self, played: Sequence[PlayedTask]) -> None:
        """Have these scored and submitted, after those before them."""
        self.task_ids |= {one.task.task_id for one in played}
        self._waiting += played
        if self._working is None or (self._working.done() and not self._failed(self._working)):
            self._working = asyncio.create_task(self._work())

    async def settle(self) -> None:
        """Wait until all is submitted; raises what scoring or submitting raised."""
        if self._working is not None:
            await self._working

    async def close(self) -> None:
        """Begin nothing more; what is under way is let go. Idempotent."""
        if self._working is not None and not self._working.done():
            self._working.cancel()
            await asyncio.wait({self._working})

    @staticmethod
    def _failed(working: asyncio.Task[None]) -> bool:
        return working.cancelled() or working.exception() is not None

    async def _work(self) -> None:
        while self._waiting:
            played, self._waiting = self._waiting, []
            await self._finish(played, time.monotonic() - self._start)
