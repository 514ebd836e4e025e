"""Many generations share one version of the weights; a load waits for them and keeps new ones out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollout.errors import EngineError


class WeightGate:
    """Readers and one writer on one event loop; a waiting load goes before generations that come later."""

    def __init__(self) -> None:
        self._loading = asyncio.Lock()
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._num_shared = 0
        self._open.set()
        self._idle.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the current weights while generating."""
        while not self._open.is_set():
            await self._open.wait()
        self._num_shared += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_shared -= 1
            if not self._num_shared:
                self._idle.set()

    @asynccontextmanager
    async def exclusive(self, seconds_max: float) -> AsyncIterator[None]:
        """Hold the weights alone. Raises EngineError when generations do not end within the bound."""
        async with self._loading:
            self._open.clear()
            try:
                await self._drain(seconds_max)
                yield
            finally:
                self._open.set()

    async def _drain(self, seconds_max: float) -> None:
        try:
            async with asyncio.timeout(seconds_max):
                await self._idle.wait()
        except TimeoutError as error:
            raise EngineError(
                f"{self._num_shared} generations did not end within {seconds_max:g} s; "
                "the new weights were not loaded"
            ) from error
