"""Who waits for which answer: each is told when it is there, or when it will not come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Waiters:
    """Who waits for which answer, by line and number. Belongs to one loop."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, int], list[asyncio.Event]] = {}

    @contextmanager
    def waiting(self, line: str, seq: int) -> Iterator[asyncio.Event]:
        """What is set when the call is answered, or its line stands still."""
        event = asyncio.Event()
        here = self._events.setdefault((line, seq), [])
        here.append(event)
        try:
            yield event
        finally:
            here.remove(event)
            if not here:
                self._events.pop((line, seq), None)

    def tell(self, line: str, seq: int) -> None:
        """The call is answered."""
        for event in self._events.get((line, seq), ()):
            event.set()

    def tell_all(self, line: str) -> None:
        """The line stands still."""
        for name, seq in list(self._events):
            if name == line:
                self.tell(name, seq)


async def until(event: asyncio.Event, seconds: float) -> None:
    """Wait for what is set, at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
