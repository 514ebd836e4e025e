"""One bounded, fair queue per version: what waits here can still be ordered, moved and let go, inside an engine it cannot.

Each key has a count of the tokens that its requests were given; who has had least comes first, so that a key with many or
large requests waits behind its own, not before others'. Whoever is within ``SLACK_TOKENS`` of the least may go before it, which
leaves room to choose by what an engine has cached. A key that comes back goes on from its count, or from the least of those that wait.
Sources: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (a counter a key, raised to the least when it
comes back); Cao et al., "Locality-aware Fair Scheduling in LLM Serving", 2025 (a bounded lead for longer matches). Pure: no clock, no task.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

SLACK_TOKENS = 16_384
"""What a key may have had more than another that waits, and still go first."""
COST_TOKENS_MIN, COST_TOKENS_MAX = 64, 131_072
"""What one request counts as: tiny ones are not free, and a huge one does not shut its key out."""
KEYS_SEEN_MAX = 32
"""Keys whose requests are looked at for one place, least served first."""
IDLE_KEYS_MAX = 256
"""Keys that wait for nothing whose counts are kept, those that had most."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Of one version: requests, and bytes of their bodies."""

    requests_max: int = 512
    bytes_max: int = 64 << 20


@dataclass(slots=True, kw_only=True, eq=False)
class Queued(Generic[T]):
    """One that waits. ``item`` is the caller's."""

    key: str
    tokens: int
    size_bytes: int
    item: T
    number: int = 0
    """Set by the queue, in the order of coming."""


@dataclass(slots=True)
class _Lane(Generic[T]):
    """Of one key, in the order of coming. ``served``: tokens."""

    served: int
    waiting: dict[Queued[T], None] = field(default_factory=dict)


class FairQueue(Generic[T]):
    """Requests of one version, by keys."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._lanes: dict[str, _Lane[T]] = {}
        self._idle: dict[str, int] = {}
        self.requests = 0
        self.tokens = 0
        self._bytes = 0
        self._number = 0

    def push(self, queued: Queued[T]) -> bool:
        """Whether there was room."""
        full = self.requests >= self._bounds.requests_max
        if full or self._bytes + queued.size_bytes > self._bounds.bytes_max:
            return False
        lane = self._lanes.get(queued.key)
        if lane is None:
            served = max(self._idle.pop(queued.key, 0), self._least())
            lane = self._lanes[queued.key] = _Lane(served)
        lane.waiting[queued] = None
        self._number += 1
        queued.number = self._number
        self._count(queued, 1)
        return True

    def candidates(self, num: int) -> list[Queued[T]]:
        """Up to ``num`` that may go next, first come first: of those keys that have had little more than the least."""
        most = self._least() + SLACK_TOKENS
        near = [one for one in self._lanes.values() if one.served <= most]
        if len(near) > KEYS_SEEN_MAX:
            near = heapq.nsmallest(KEYS_SEEN_MAX, near, key=lambda one: one.served)
        share = max(1, num // max(1, len(near)))
        found = [one for lane in near for one in islice(lane.waiting, share)]
        found.sort(key=lambda one: one.number)
        return found

    def take(self, queued: Queued[T], saved_tokens: int = 0) -> None:
        """It has its place: its key is charged, but for those of its tokens that need no computing."""
        tokens = queued.tokens - saved_tokens
        self._lanes[queued.key].served += min(max(tokens, COST_TOKENS_MIN), COST_TOKENS_MAX)
        self.remove(queued)

    def remove(self, queued: Queued[T]) -> None:
        """It waits no more; idempotent."""
        lane = self._lanes.get(queued.key)
        if lane is None or queued not in lane.waiting:
            return
        del lane.waiting[queued]
        self._count(queued, -1)
        if not lane.waiting:
            del self._lanes[queued.key]
            self._idle[queued.key] = lane.served
            self._forget_idle()

    def _least(self) -> int:
        return min((one.served for one in self._lanes.values()), default=0)

    def _forget_idle(self) -> None:
        """Once nothing waits nobody is owed anything; before, those who had least say least."""
        if not self._lanes:
            self._idle.clear()
        elif len(self._idle) > IDLE_KEYS_MAX:
            most = heapq.nlargest(IDLE_KEYS_MAX // 2, self._idle.items(), key=lambda one: one[1])
            self._idle = dict(most)

    def _count(self, queued: Queued[T], sign: int) -> None:
        self.requests += sign
        self.tokens += sign * queued.tokens
        self._bytes += sign * queued.size_bytes
