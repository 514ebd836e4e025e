"""What a fault does to the lines of a watch; each line is one event."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from faults.status import build_status

LATE_EVENTS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """The first events, then nothing more."""

    events: int

    async def __call__(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """At most `events` of the lines."""
        taken = 0
        while taken < self.events:
            line = await anext(lines, None)
            if line is None:
                return
            taken += 1
            yield line


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """The first events, then the event that says that something is wrong: 410, the version is too old."""

    events: int
    status: int = 410

    async def __call__(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """At most `events` of the lines and one more."""
        async for line in Take(events=self.events)(lines):
            yield line
        yield json.dumps({"type": "ERROR", "object": build_status(self.status)}).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Every event, late by the same time."""

    seconds: float

    async def __call__(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same lines, later: read at once, so that a burst is late once and not once per event."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=LATE_EVENTS_MAX)

        async def read() -> None:
            async for line in lines:
                await queue.put((loop.time() + self.seconds, line))
            await queue.put((loop.time(), b""))

        reader = asyncio.create_task(read())
        try:
            due, line = await queue.get()
            while line:
                await asyncio.sleep(max(0.0, due - loop.time()))
                yield line
                due, line = await queue.get()
        finally:
            reader.cancel()
