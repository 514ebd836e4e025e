"""What is known of a version's engines: what each was given and has not answered, and which beginnings of prompts it has computed.

Everything is counted here, at dispatch and at the end; nothing is scraped, so no two requests see the same old number. A prompt is a
chain of digests, one for each block and all before it, keyed by its tenant: nobody can make another's blocks, or find out which
there are. Pure but for its counters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

BLOCK_BYTES = 256
BLOCK_TOKENS = 64
BLOCKS_MAX = 1024
"""Of one prompt: what lies behind is not compared."""
INDEX_BLOCKS_MAX = 65_536
"""Of one engine; the least recently used are forgotten, ends of prompts before their beginnings."""
BUSY_TOKENS = 1024
"""Of a prompt: what an engine with all its places taken costs a request more than an idle one. Who computes together slows each other."""
RATE_DEFAULT = 2000.0
"""Prompt tokens a second, until this engine's own answers tell."""
RATE_WEIGHT = 0.1
RATE_TOKENS_MIN = BLOCK_TOKENS
"""Shorter computations say more of a step than of a token."""
DIGEST_BYTES = 16


@dataclass(slots=True, kw_only=True, eq=False)
class EngineLoad:
    """What one engine has been given and has not answered. ``ready``: it may be given more.

    ``changes`` counts what was learned of its cache, so that what was looked up stays known until then.
    """

    name: str
    slots: int
    ready: bool = True
    requests: int = 0
    unanswered_tokens: int = 0
    rate: float = RATE_DEFAULT
    changes: int = 0
    index: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def has_room(self) -> bool:
        """Whether one more request would be answered at once."""
        return self.ready and self.requests < self.slots

    @property
    def seconds(self) -> float:
        """What a request that comes now waits for: prompts before it, and the company of those that are decoded."""
        busy = BUSY_TOKENS * self.requests / max(self.slots, 1)
        return (self.unanswered_tokens + busy) / self.rate

    def count_matched(self, blocks: Sequence[bytes]) -> int:
        """How many of a prompt's blocks, from its beginning, this engine has seen.

        By halving: a block is never forgotten before those that follow it.
        """
        if not blocks or blocks[0] not in self.index:
            return 0
        low, high = 1, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if blocks[middle - 1] in self.index else (low, middle - 1)
        return low

    def begin(self, blocks: Sequence[bytes], tokens: int) -> None:
        """A request with ``tokens`` uncached prompt tokens is sent to it."""
        self.requests += 1
        self.unanswered_tokens += tokens
        known = len(self.index)
        for block in reversed(blocks):
            self.index[block] = None
            self.index.move_to_end(block)
        self.changes += len(self.index) > known
        while len(self.index) > INDEX_BLOCKS_MAX:
            self.index.popitem(last=False)

    def answered(self, tokens: int, ahead: int, seconds: float) -> None:
        """Its first byte has come: the prompt is computed, and the ``ahead`` tokens that were unanswered when it was sent."""
        self.unanswered_tokens -= tokens
        if seconds > 0 and tokens >= RATE_TOKENS_MIN:
            self.rate += RATE_WEIGHT * (max((ahead + tokens) / seconds, 1.0) - self.rate)

    def forget(self) -> None:
        """The engine is another process now: nothing is cached in it."""
        self.index.clear()
        self.changes += 1


def chain_blocks(lead: bytes, salt: str) -> list[bytes]:
    """A digest of each block of a prompt that stands for everything up to it; of one tenant's cache only."""
    chain, running = [], blake2b(salt.encode(), digest_size=DIGEST_BYTES).digest()
    for start in range(0, min(len(lead), BLOCKS_MAX * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        block = lead[start : start + BLOCK_BYTES]
        running = blake2b(running + block, digest_size=DIGEST_BYTES).digest()
        chain.append(running)
    return chain


def draw_engine(engine: EngineLoad, session: bytes) -> bytes:
    """Rendezvous: when an engine comes or goes, only its own conversations move (Thaler and Ravishankar, 1998)."""
    return blake2b(engine.name.encode() + b"/" + session, digest_size=8).digest()
