"""What is known of a version's engines: what each was given and has not answered, and which beginnings of prompts it has computed.

Everything is counted here, at dispatch and at the end; nothing is scraped, so no two requests see the same old number. A prompt is a
chain of digests, one for each block and all before it, keyed by its tenant: nobody can make another's blocks, or find out which
there are. How many blocks an engine's cache holds is learned from its answers, which say how much of a prompt was cached: where little was of what
should have been, fewer are taken to be there. Pure but for its counters.
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
HELD_BLOCKS_MIN = 256
"""That an engine is taken to hold, whatever its answers say."""
DROPPED_SHARE = 0.5
"""Less of what was known to be computed: the engine has dropped it. Not all, since tokens and bytes are not in one proportion everywhere."""
DROPPED_STEP = 16
"""One block in so many is taken to be there no more; each answer that was cached as known gives one back."""
RATE_DEFAULT = 2000.0
"""Prompt tokens a second, until this engine's own answers tell."""
RATE_WEIGHT = 0.1
RATE_TOKENS_MIN = BLOCK_TOKENS
"""Shorter computations say more of a step than of a token."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPrompt:
    """A prompt that an engine was given, ``number`` of its own. ``tokens`` it was to compute, ``ahead`` those that it had not answered then.

    ``known``: the share of the prompt that it had computed before and answered.
    """

    number: int
    tokens: int
    ahead: int
    known: float


@dataclass(slots=True, kw_only=True, eq=False)
class EngineLoad:
    """What one engine has been given and has not answered. ``ready``: it may be given more.

    ``changes`` counts what was learned of its cache, so that what was looked up stays known until then. ``index`` has the number of the prompt that
    brought a block, ``held_max`` how many blocks the cache is taken to hold; ``tells``: its answers say what was cached.
    """

    name: str
    slots: int
    ready: bool = True
    requests: int = 0
    unanswered_tokens: int = 0
    rate: float = RATE_DEFAULT
    changes: int = 0
    index: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    held_max: int = INDEX_BLOCKS_MAX
    tells: bool = False
    _number: int = 0
    _computing: set[int] = field(default_factory=set)

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

    def begin(self, blocks: Sequence[bytes], tokens: int) -> SentPrompt:
        """A request with ``tokens`` uncached prompt tokens is sent to it."""
        matched = self.count_matched(blocks)
        prompt_tokens = max(tokens + matched * BLOCK_TOKENS, 1)
        self._number += 1
        sent = SentPrompt(
            number=self._number,
            tokens=tokens,
            ahead=self.unanswered_tokens,
            known=self._count_computed(blocks[:matched]) * BLOCK_TOKENS / prompt_tokens,
        )
        self.requests += 1
        self.unanswered_tokens += tokens
        self._computing.add(sent.number)
        for block in reversed(blocks):
            self.index.setdefault(block, sent.number)
            self.index.move_to_end(block)
        self.changes += matched < len(blocks)
        self._forget_oldest()
        return sent

    def answered(self, sent: SentPrompt, seconds: float) -> None:
        """Its first byte has come: the prompt is computed, and the tokens that were unanswered when it was sent."""
        self._computing.discard(sent.number)
        self.unanswered_tokens -= sent.tokens
        if seconds > 0 and sent.tokens >= RATE_TOKENS_MIN:
            seen = max((sent.ahead + sent.tokens) / seconds, 1.0)
            self.rate += RATE_WEIGHT * (seen - self.rate)

    def told(self, sent: SentPrompt, cached: float) -> None:
        """Its answer says which share of the prompt was cached: how much the engine holds is corrected by it."""
        self.tells = self.tells or cached > 0
        if not self.tells or not sent.known:
            return
        if cached >= DROPPED_SHARE * sent.known:
            self.held_max = min(self.held_max + 1, INDEX_BLOCKS_MAX)
            return
        held = min(self.held_max, len(self.index))
        self.held_max = max(held - held // DROPPED_STEP, HELD_BLOCKS_MIN)
        self.changes += 1
        self._forget_oldest()

    def forget(self) -> None:
        """The engine is another process now: nothing is cached in it."""
        self.index.clear()
        self.changes += 1

    def _count_computed(self, blocks: Sequence[bytes]) -> int:
        """How many from the beginning are of prompts that were answered: what is being computed is not cached in every engine."""
        being = (place for place, one in enumerate(blocks) if self.index[one] in self._computing)
        return next(being, len(blocks))

    def _forget_oldest(self) -> None:
        while len(self.index) > self.held_max:
            self.index.popitem(last=False)


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
