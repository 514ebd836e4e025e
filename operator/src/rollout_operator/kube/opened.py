"""When each of kopf's watches was last opened: an aiohttp middleware that only looks.

kopf tells nobody about bookmarks; but it opens every watch anew after a bounded time, so a watch that
was not opened for longer is dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import aiohttp

from rollout_operator.kube.resources import OWN_KINDS

_PLURALS = frozenset(one.plural for one in OWN_KINDS)


class OpenedWatches:
    """Ages of the watches of our own kinds, by plural; one that was never opened has none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[str, float] = {}

    def hear(self, plural: str) -> None:
        """An event came, or the watch was opened."""
        self._heard[plural] = self._clock()

    def ages(self) -> dict[str, float]:
        """Seconds since each was heard."""
        now = self._clock()
        return {plural: now - at for plural, at in self._heard.items()}

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Note a watch that is opened well."""
        response = await handler(request)
        if response.status == 200 and "watch" in request.url.query:
            plural = request.url.path.rpartition("/")[2]
            if plural in _PLURALS:
                self.hear(plural)
        return response
