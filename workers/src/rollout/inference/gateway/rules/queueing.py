"""One bounded, fair queue per version: what waits here can still be ordered, moved and let go, inside an engine it cannot.

Deficit round robin over keys, by tokens: a key with many or large requests waits behind its own, not before others'.
Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin", SIGCOMM 1995. Pure: no clock, no task.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

QUANTUM_TOKENS = 2048
"""What a key may take in its turn; a request that costs more waits for several turns."""

TURNS_MAX = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Of one version: requests, and bytes of their bodies."""

    requests_max: int = 512
    bytes_max: int = 64 << 20


@dataclass(slots=True, kw_only=True, eq=False)
class Queued(Generic[T]):
    """One that waits. ``item`` is the caller's; ``gone``: it does not wait any more."""

    key: str
    tokens: int
    size_bytes: int
    item: T
    gone: bool = False


@dataclass(slots=True)
class _Lane(Generic[T]):
    waiting: deque[Queued[T]] = field(default_factory=deque)
    deficit: int = 0


class FairQueue(Generic[T]):
    """Requests of one version, taken in turns of their keys."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._lanes: dict[str, _Lane[T]] = {}
        self._turns: deque[str] = deque()
        self.requests = 0
        self.tokens = 0
        self._bytes = 0

    def push(self, queued: Queued[T]) -> bool:
        """Whether there was room."""
        full = self.requests >= self._bounds.requests_max
        if full or self._bytes + queued.size_bytes > self._bounds.bytes_max:
            return False
        lane = self._lanes.get(queued.key)
        if lane is None:
            lane = self._lanes[queued.key] = _Lane()
            self._turns.append(queued.key)
        lane.waiting.append(queued)
        self._count(queued, 1)
        return True

    def remove(self, queued: Queued[T]) -> None:
        """It waits no more; idempotent."""
        if not queued.gone:
            queued.gone = True
            self._count(queued, -1)

    def pop(self) -> Queued[T] | None:
        """The next one in turn; None where nothing waits."""
        while self._turns:
            lane = self._lanes[self._turns[0]]
            while lane.waiting and lane.waiting[0].gone:
                lane.waiting.popleft()
            if not lane.waiting:
                del self._lanes[self._turns.popleft()]
            elif lane.deficit >= _cost(lane.waiting[0]) or len(self._turns) == 1:
                queued = lane.waiting.popleft()
                lane.deficit = max(0, lane.deficit - _cost(queued))
                self.remove(queued)
                return queued
            else:
                self._turns.rotate(-1)
                self._lanes[self._turns[0]].deficit += QUANTUM_TOKENS
        return None

    def _count(self, queued: Queued[T], sign: int) -> None:
        self.requests += sign
        self.tokens += sign * queued.tokens
        self._bytes += sign * queued.size_bytes


def _cost(queued: Queued[T]) -> int:
    """What it takes of its key's turns: bounded, so that a turn comes round."""
    return min(queued.tokens, TURNS_MAX * QUANTUM_TOKENS)
