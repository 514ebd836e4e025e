"""Groups that have ended are scored and submitted while others are still drawn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from rollout.actor.runner import PlayedTask
from rollout.protocol.messages import Task


class Finishing:
    """What becomes of groups that have ended, in the order of their ends, while others are drawn.

    One call after the other, each with all that has ended meanwhile and how long each was played. Bounded by the
    groups in hand.
    """

    def __init__(
        self, finish: Callable[[Sequence[PlayedTask], Sequence[float]], Awaitable[None]]
    ) -> None:
        self._finish = finish
        self._begun: dict[str, float] = {}
        self._waiting: list[PlayedTask] = []
        self._working: asyncio.Task[None] | None = None
        self._num_finishing = 0
        self.task_ids: set[str] = set()

    def enter(self, tasks: Sequence[Task]) -> None:
        """These are played from now on."""
        now = time.monotonic()
        self._begun |= {task.task_id: now for task in tasks}

    def begin(self, played: Sequence[PlayedTask]) -> None:
        """Have these scored and submitted, after those before them."""
        self.task_ids |= {one.task.task_id for one in played}
        self._waiting += played
        if self._working is None or (self._working.done() and not self._failed(self._working)):
            self._working = asyncio.create_task(self._work())

    @property
    def num_waiting(self) -> int:
        """Groups that have ended and are not submitted."""
        return len(self._waiting) + self._num_finishing

    def check(self) -> None:
        """Raise what scoring or submitting raised, if it did."""
        if self._working is not None and self._working.done():
            self._working.result()

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
            self._num_finishing, now = len(played), time.monotonic()
            seconds = [now - self._begun.pop(one.task.task_id, now) for one in played]
            await self._finish(played, seconds)
            self._num_finishing = 0
