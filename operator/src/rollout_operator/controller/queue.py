"""The keyed work queue: many events of one object are one piece of work.

Bounded by the number of objects: a key waits at most once, however many events name it. A key that
is being worked on is not handed out again; news that come meanwhile bring it back afterwards.
Namespaces take turns: one with thousands of keys holds up the key of another by one of its own.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rollout_operator.controller.backoff import pause_seconds

BACKOFF_SECONDS_MAX = 120.0
LATER_SECONDS_MIN = 0.1
HOLD_SECONDS_MAX = 5.0
"""News of a key that failed bring it back no sooner than its back-off says, and no later than this."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """An object of ours; ``kind`` as its manifest says it, ``namespace`` empty where its kind has none."""

    namespace: str
    name: str
    kind: str


def backoff_seconds(num_failures: int, jitter: float) -> float:
    """Doubling from 0.2 s to 2 min; ``jitter`` from 0 to 1 takes up to half of it away."""
    return pause_seconds(num_failures, BACKOFF_SECONDS_MAX, jitter)


class Turns:
    """Keys that wait, with the time since when: in each namespace first in, first out; namespaces take turns."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, dict[Key, float]] = OrderedDict()
        self._num_waiting = 0

    def __len__(self) -> int:
        """How many keys wait."""
        return self._num_waiting

    def add(self, key: Key, now: float) -> None:
        """Add a key unless it already waits."""
        waiting = self._namespaces.setdefault(key.namespace, {})
        self._num_waiting += key not in waiting
        waiting.setdefault(key, now)

    def take(self) -> tuple[Key, float]:
        """The key whose turn it is; its namespace goes to the end. There must be one."""
        namespace, waiting = self._namespaces.popitem(last=False)
        key = next(iter(waiting))
        since = waiting.pop(key)
        if waiting:
            self._namespaces[namespace] = waiting
        self._num_waiting -= 1
        return key, since


class KeyQueue:
    """First in, first out among the keys of a namespace; a key that already waits is not added again."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        noise: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._noise = noise
        self._waiting = Turns()
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._later: list[tuple[float, Key]] = []
        self._due: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._held: dict[Key, float] = {}
        self._ready = asyncio.Event()
        self._turn = asyncio.Lock()
        """One taker at a time waits for news: a key that is due wakes no other."""

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self._waiting)

    def put(self, key: Key) -> None:
        """Add a key unless it already waits."""
        if key in self._working:
            self._again.add(key)
            return
        now = self._clock()
        if (held := self._held.get(key, now)) > now:
            self.put_later(key, held - now)
            return
        self._waiting.add(key, now)
        self._ready.set()

    def put_later(self, key: Key, seconds: float) -> None:
        """Add a key after some time, unless it is due sooner anyway; never at once, lest one key be all the work."""
        due = self._clock() + max(seconds, LATER_SECONDS_MIN)
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._later, (due, key))
        self._ready.set()

    def failures(self, key: Key) -> int:
        """How often in a row work on this key has failed."""
        return self._failures.get(key, 0)

    def retry(self, key: Key, seconds_min: float = 0.0, asked_seconds: float = 0.0) -> float:
        """Add a key whose work failed, after back-off; the seconds it waits.

        Nothing brings it back before the seconds that the API server asked for.
        """
        num_failures = self._failures.get(key, 0)
        self._failures[key] = num_failures + 1
        wait = max(seconds_min, asked_seconds, backoff_seconds(num_failures, self._noise()))
        self._held[key] = self._clock() + max(asked_seconds, min(wait, HOLD_SECONDS_MAX))
        self.put_later(key, wait)
        return wait

    def forgive(self, key: Key) -> None:
        """Work on this key succeeded: its next failure waits the shortest time."""
        self._failures.pop(key, None)
        self._held.pop(key, None)

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self._failures.pop(key, None)
        self._held.pop(key, None)
        self._due.pop(key, None)

    def done(self, key: Key) -> None:
        """The work that ``get`` handed out is over."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.put(key)

    async def get(self) -> Key:
        """The key whose turn it is; waits for one. ``done`` gives it back."""
        return (await self.take())[0]

    async def take(self) -> tuple[Key, float]:
        """As ``get``, with the seconds that the key has waited."""
        async with self._turn:
            while True:
                self._promote()
                if self._waiting:
                    key, since = self._waiting.take()
                    self._working.add(key)
                    return key, self._clock() - since
                self._ready.clear()
                await self._wait()

    async def _wait(self) -> None:
        seconds = max(0.0, self._later[0][0] - self._clock()) if self._later else None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ready.wait()

    def _promote(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.put(key)
