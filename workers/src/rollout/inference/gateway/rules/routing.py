"""Which engine of a version takes a request: where its prompt's beginning is cached, until that engine is the busier one.

Everything is counted here, at dispatch and at the end; nothing is scraped, so no two requests see the same old number.
Sticky until saturated, as llm-d's router does: of the engines that have most of the prompt the one with the fewest
unanswered prompt tokens, unless another would begin sooner by more than ``PENALTY_SECONDS``. Ties go to fewer requests, then to
the engine that a conversation's name draws, so that one too short for a block comes back to where it was. Pure but for its counters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

BLOCK_BYTES = 256
"""About 64 tokens."""
BLOCKS_MAX = 1024
"""Of one prompt: what lies behind is not compared."""
INDEX_BLOCKS_MAX = 65_536
"""Of one engine; the least recently used are forgotten."""
MATCH_MIN = 0.8
PENALTY_SECONDS = 2.0
RATE_DEFAULT = 2000.0
"""Prompt tokens a second, until this engine's own answers tell."""
RATE_WEIGHT = 0.2
DIGEST_BYTES = 16


@dataclass(slots=True, kw_only=True)
class EngineLoad:
    """What one engine has been given and has not answered. ``ready``: it may be given more."""

    name: str
    slots: int
    ready: bool = True
    requests: int = 0
    unanswered_tokens: int = 0
    rate: float = RATE_DEFAULT
    index: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def has_room(self) -> bool:
        """Whether one more request would be answered at once."""
        return self.ready and self.requests < self.slots

    def matched(self, blocks: Sequence[bytes]) -> float:
        """The share of a prompt's blocks, from its beginning, that this engine has seen; 0 to 1."""
        if not blocks:
            return 0.0
        seen = 0
        for block in blocks:
            if block not in self.index:
                break
            seen += 1
        return seen / len(blocks)

    def begin(self, blocks: Sequence[bytes], tokens: int) -> None:
        """A request with ``tokens`` uncached prompt tokens is sent to it."""
        self.requests += 1
        self.unanswered_tokens += tokens
        for block in blocks:
            self.index[block] = None
            self.index.move_to_end(block)
        while len(self.index) > INDEX_BLOCKS_MAX:
            self.index.popitem(last=False)

    def answered(self, tokens: int, seconds: float) -> None:
        """Its first byte has come: the prompt is computed."""
        self.unanswered_tokens -= tokens
        if seconds > 0 and tokens > 0:
            self.rate += RATE_WEIGHT * (tokens / seconds - self.rate)

    def forget(self) -> None:
        """The engine is another process now: nothing is cached in it."""
        self.index.clear()


def chain_blocks(lead: bytes, salt: str) -> list[bytes]:
    """A digest of each block of a prompt that stands for everything up to it; of one tenant's cache only."""
    chain, running = [], salt.encode()
    for start in range(0, min(len(lead), BLOCKS_MAX * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        block = lead[start : start + BLOCK_BYTES]
        running = blake2b(running + block, digest_size=DIGEST_BYTES).digest()
        chain.append(running)
    return chain


def choose_engine(
    engines: Sequence[EngineLoad], blocks: Sequence[bytes], session: bytes
) -> EngineLoad | None:
    """The engine for a request among those with room; None where none has. ``session``: the same in all requests of a conversation."""
    free = [one for one in engines if one.has_room]
    if len(free) < 2:
        return free[0] if free else None
    sticky = [one for one in free if one.matched(blocks) >= MATCH_MIN]
    least = min(map(_seconds, free))
    if sticky and min(map(_seconds, sticky)) - least <= PENALTY_SECONDS:
        free = sticky
    return min(free, key=lambda one: (_seconds(one), one.requests, _drawn(one, session)))


def _drawn(engine: EngineLoad, session: bytes) -> bytes:
    """Rendezvous: when an engine comes or goes, only its own conversations move (Thaler and Ravishankar, 1998)."""
    return blake2b(engine.name.encode() + b"/" + session, digest_size=8).digest()


def _seconds(engine: EngineLoad) -> float:
    return engine.unanswered_tokens / max(engine.rate, 1.0)
