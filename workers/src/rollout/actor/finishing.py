"""Groups that have ended are scored and submitted while others of the claim are still drawn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from rollout.actor.runner import PlayedTask


class Finishing:
    """What becomes of groups that have ended, in the order of their ends, while others are drawn.

    One after the other: rewards take one call at a time. Bounded by the groups of a claim.
    """

    def __init__(self, finish: Callable[[Sequence[PlayedTask], float], Awaitable[None]]) -> None:
        self._finish = finish
        self._start = time.monotonic()
        self._last: asyncio.Task[None] | None = None
        self.task_ids: set[str] = set()

    def begin(self, played: Sequence[PlayedTask]) -> None:
        """Have these scored and submitted, after those before them."""
        self.task_ids |= {one.task.task_id for one in played}
        seconds = time.monotonic() - self._start
        self._last = asyncio.create_task(self._follow(self._last, played, seconds))

    async def settle(self) -> None:
        """Wait until all is submitted; raises what scoring or submitting raised."""
        if self._last is not None:
            await self._last

    async def close(self) -> None:
        """Begin nothing more; what is under way is let go. Idempotent."""
        if self._last is not None and not self._last.done():
            self._last.cancel()
            await asyncio.wait({self._last})

    async def _follow(
        self, before: asyncio.Task[None] | None, played: Sequence[PlayedTask], seconds: float
    ) -> None:
        if before is not None:
            await before
        await self._finish(played, seconds)
