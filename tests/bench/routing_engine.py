"""An engine that is computed and not run: vLLM's scheduler, cache of prefixes and the seconds of its steps, in simulated time.

A step gives each running sequence one token and spends the rest of its budget on prompts, first come first served, in chunks (vLLM v1).
Blocks of 16 tokens are cached under the digest of all that precedes them and dropped least recently used first, while running sequences hold
theirs. What a step takes is ``routing_fit.json``'s, whose ``how`` says where that is from. The memory holds all sequences at the context's length: nothing is preempted.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

BLOCK_TOKENS = 16
TOKEN_BYTES = 4
STEP_TOKENS_MAX = 2048
SEQUENCES = 16
CACHE_TOKENS = 16 * 4096
"""As ``rollout infer serve`` plans it on a CPU: all sequences at the context's length."""
COSTS: dict[str, float] = json.loads(Path(__file__).with_name("routing_fit.json").read_text())[
    "seconds"
]


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request of a trace, and when what happened to it. ``text``: prompt and answer, ``TOKEN_BYTES`` a token."""

    key: str
    session: bytes
    text: bytes
    prompt_tokens: int
    new_tokens: int
    came_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0
    cached_tokens: int = 0
    _blocks: list[bytes] = field(default_factory=list)

    @property
    def prompt(self) -> bytes:
        """The prompt's bytes."""
        return self.text[: self.prompt_tokens * TOKEN_BYTES]

    @property
    def blocks(self) -> list[bytes]:
        """Digests of its whole blocks, answer included."""
        if not self._blocks:
            running, size = b"", BLOCK_TOKENS * TOKEN_BYTES
            for start in range(0, len(self.text) - size + 1, size):
                running = blake2b(running + self.text[start : start + size], digest_size=8).digest()
                self._blocks.append(running)
        return self._blocks


@dataclass(slots=True, kw_only=True, eq=False)
class _Sequence:
    request: Request
    computed: int
    made: int = 0
    needs: int = 0

    @property
    def prefilling(self) -> bool:
        return self.computed < self.request.prompt_tokens


class SimulatedEngine:
    """One replica. ``step`` is called whenever it is idle and has something to do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[Request] = deque()
        self.running: list[_Sequence] = []
        self.busy = False
        self.busy_seconds = 0.0
        self.prefilled_tokens = 0
        self._cache: OrderedDict[bytes, None] = OrderedDict()

    @property
    def load(self) -> int:
        """Requests that it has."""
        return len(self.waiting) + len(self.running)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of requests that have not begun."""
        return sum(one.prompt_tokens for one in self.waiting)

    @property
    def cache_share(self) -> float:
        """Of its memory, what running sequences need."""
        return min(sum(one.needs for one in self.running) / CACHE_TOKENS, 0.999)

    def step(self) -> tuple[float, list[Request], list[Request]]:
        """Seconds of one step, and the requests that get their first and their last token at its end."""
        self._admit()
        budget = STEP_TOKENS_MAX
        seconds = COSTS["step"]
        first, last = [], []
        for one in self.running:
            if not one.prefilling:
                seconds += COSTS["decoded_token"]
                seconds += COSTS["decoded_token_times_context"] * (one.computed + one.made)
                one.made += 1
                budget -= 1
        for one in self.running:
            if one.prefilling and budget > 0:
                num = min(budget, one.request.prompt_tokens - one.computed)
                context = one.computed + num / 2
                seconds += num * (
                    COSTS["prompt_token"] + COSTS["prompt_token_times_context"] * context
                )
                one.computed += num
                budget -= num
                self.prefilled_tokens += num
                if not one.prefilling:
                    one.made = 1
                    self._keep(one, one.request.prompt_tokens)
                    first.append(one.request)
        for one in [one for one in self.running if one.made >= one.request.new_tokens]:
            last.append(one.request)
            self._end(one)
        self.busy_seconds += seconds
        return seconds, first, last

    def _admit(self) -> None:
        while self.waiting and len(self.running) < SEQUENCES:
            request = self.waiting[0]
            self.waiting.popleft()
            cached, needs = 0, request.prompt_tokens + request.new_tokens
            for block in request.blocks[: (request.prompt_tokens - 1) // BLOCK_TOKENS]:
                if block not in self._cache:
                    break
                cached += BLOCK_TOKENS
            request.cached_tokens = cached
            one = _Sequence(request=request, computed=cached, needs=needs)
            self.running.append(one)
            self._keep(one, cached)

    def _keep(self, one: _Sequence, tokens: int) -> None:
        """What it has computed is there for others, its end the first to go."""
        for block in reversed(one.request.blocks[: tokens // BLOCK_TOKENS]):
            self._cache[block] = None
            self._cache.move_to_end(block)
        tails = sum(one.needs - one.computed for one in self.running)
        while len(self._cache) * BLOCK_TOKENS > CACHE_TOKENS - tails:
            self._cache.popitem(last=False)

    def _end(self, one: _Sequence) -> None:
        self.running.remove(one)
        self._keep(one, one.request.prompt_tokens + one.request.new_tokens - 1)
