"""Engines that answer in simulated time, given requests by the gateway's own rules."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from rollout.inference.gateway.rules.placing import PlacedRequest, Seeker, place_next
from rollout.inference.gateway.rules.queueing import (
    COST_TOKENS_MIN,
    FairQueue,
    QueueBounds,
    Queued,
)
from rollout.inference.gateway.rules.routing import BLOCK_TOKENS, EngineLoad, chain_blocks

SESSION = b"s"
_NUMBERS = count()


@dataclass(eq=False)
class Sought:
    """One request; ``seconds`` that an engine takes for it."""

    seeker: Seeker
    seconds: float = 1.0
    came_at: float = 0.0
    placed_at: float = -1.0
    engine: str = ""


def seek(text: str, num: int = 8, tail: int = 0, salt: str = "t", seconds: float = 1.0) -> Sought:
    """A prompt of ``num`` blocks that begins as all others of this text, and ``tail`` blocks of its own."""
    lead = b"".join(f"{text}/{place}".encode().ljust(256) for place in range(num))
    lead += b"".join(f"{next(_NUMBERS)}".encode().ljust(256) for _ in range(tail))
    blocks = chain_blocks(lead, salt)
    seeker = Seeker(prompt_tokens=(num + tail) * BLOCK_TOKENS, blocks=blocks, session=SESSION)
    return Sought(seeker, seconds)


@dataclass(eq=False)
class World:
    """``now`` in seconds; requests end by themselves."""

    engines: list[EngineLoad]
    now: float = 0.0
    queue: FairQueue[Sought] = field(
        default_factory=lambda: FairQueue(QueueBounds(requests_max=10_000))
    )
    placed: list[Sought] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    again_at: float = float("inf")
    _ends: list[tuple[float, int, EngineLoad]] = field(default_factory=list)

    def come(self, sought: Sought, key: str = "k", tokens: int = 100) -> Sought:
        """One more waits, and may go at once."""
        sought.came_at = self.now
        assert self.queue.push(Queued(key=key, tokens=tokens, size_bytes=1, item=sought))
        self.look()
        return sought

    def look(self) -> None:
        """Whoever may go, goes."""
        while True:
            placed, self.again_at = place_next(self.engines, self.queue, self.now)
            if placed is None:
                return
            self._begin(placed)

    def advance(self, until: float = float("inf")) -> bool:
        """To the next thing that happens; False where nothing will by then."""
        ends_at = self._ends[0][0] if self._ends else float("inf")
        at = min(ends_at, self.again_at)
        if at > until or at == float("inf"):
            return False
        self.now = at
        while self._ends and self._ends[0][0] <= at:
            heapq.heappop(self._ends)[2].requests -= 1
        self.look()
        return True

    def _begin(self, placed: PlacedRequest[Sought]) -> None:
        queued, engine = placed
        sought = queued.item
        uncached = sought.seeker.uncached(engine)
        self.queue.take(queued)
        self.served[queued.key] = self.served.get(queued.key, 0) + max(
            queued.tokens, COST_TOKENS_MIN
        )
        engine.begin(sought.seeker.blocks, uncached)
        engine.unanswered_tokens -= uncached
        sought.placed_at, sought.engine = self.now, engine.name
        self.placed.append(sought)
        heapq.heappush(self._ends, (self.now + sought.seconds, len(self.placed), engine))


def build_world(num: int = 2, slots: int = 1) -> World:
    """So many engines, a to z."""
    return World([EngineLoad(name=chr(97 + place), slots=slots) for place in range(num)])
