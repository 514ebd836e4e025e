"""When each of kopf's watches was last opened, and not too often: an aiohttp middleware.

kopf tells nobody about bookmarks; but it opens every watch anew after a bounded time, so a watch that
was not opened for longer is dead. A watch that breaks at once, again and again, is opened with growing
pauses, which kopf by itself would not make.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable

import aiohttp

from rollout_operator.controller.backoff import pause_seconds

SHORT_SECONDS = 8.0
"""A watch that was opened so lately did not live."""
PAUSE_SECONDS_MAX = 4.0


class OpenedWatches:
    """The watches that kopf shall hold, by the path of their collection; ages count from the beginning."""

    def __init__(
        self,
        expected: Iterable[str],
        clock: Callable[[], float] = time.monotonic,
        noise: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._noise = noise
        self._heard = dict.fromkeys(expected, clock())
        self._waiting = set(self._heard)
        self._lately: dict[str, tuple[float, int]] = {}

    def hear(self, path: str) -> None:
        """An event came, or the watch was opened."""
        self._heard[path] = self._clock()

    def ages(self) -> dict[str, float]:
        """Seconds since each was heard."""
        now = self._clock()
        return {path: now - at for path, at in self._heard.items()}

    def waiting(self) -> set[str]:
        """Watches that were not opened yet: their first list is not in."""
        return set(self._waiting)

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Hold back a watch that is opened too often; note one that is opened well."""
        path = request.url.path
        if "watch" not in request.url.query or path not in self._heard:
            return await handler(request)
        await asyncio.sleep(self._pause(path))
        response = await handler(request)
        if response.status == 200:
            self._waiting.discard(path)
            self.hear(path)
        return response

    def _pause(self, path: str) -> float:
        """Seconds to wait before this watch is opened; grows while it keeps ending at once."""
        now = self._clock()
        last, times = self._lately.get(path, (float("-inf"), 0))
        times = times + 1 if now - last < SHORT_SECONDS else 0
        self._lately[path] = (now, times)
        return pause_seconds(times - 1, PAUSE_SECONDS_MAX, self._noise()) if times else 0.0
