"""The keyed work queue: many events of one object are one piece of work.

Bounded by the number of objects: a key waits at most once, however many events name it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """A namespaced object of ours."""

    namespace: str
    name: str


class KeyQueue:
    """First in, first out; a key that already waits is not added again."""

    def __init__(self) -> None:
        self._waiting: dict[Key, None] = {}
        self._ready = asyncio.Event()

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self._waiting)

    def put(self, key: Key) -> None:
        """Add a key unless it already waits."""
        self._waiting.setdefault(key)
        self._ready.set()

    async def get(self) -> Key:
        """The key that has waited longest; waits for one."""
        while not self._waiting:
            self._ready.clear()
            await self._ready.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        return key
