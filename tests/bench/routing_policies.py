"""Three ways to spread requests over engines, behind one shape: a request comes, gets its first token, ends.

``Ours`` is the gateway's own rules and queue, with the places that ``rollout infer serve`` gives vLLM. ``RoundRobin`` sends at once, in turn.
``SmgCacheAware`` is written anew from what smg 1.13 documents of its policy ``cache_aware`` for HTTP engines, with its defaults; it is not
smg. It is given more than smg has: loads are read at each choice and not every ten seconds, queued tokens are known exactly, and
its tree forgets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from routing_engine import BLOCK_TOKENS, COSTS, SEQUENCES, Request, SimulatedEngine

from rollout.inference.gateway.rules.placing import Seeker, place_next
from rollout.inference.gateway.rules.queueing import FairQueue, QueueBounds, Queued
from rollout.inference.gateway.rules.routing import EngineLoad, SentPrompt, chain_blocks

SLOTS = SEQUENCES + max(1, SEQUENCES // 10)
MATCH_MIN, REL_MAX, ABS_MAX = 0.3, 1.5, 64
MEMORY_SECONDS = 0.15
NEVER = float("inf")


class Policy(Protocol):
    """What sends requests to engines. What returns a time wants to ``look`` then, though nothing happens."""

    def came(self, request: Request, now: float) -> float: ...
    def began(self, request: Request, now: float) -> None: ...
    def ended(self, request: Request, now: float) -> float: ...
    def look(self, now: float) -> float: ...


class Plain:
    """A policy that keeps no queue."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        self.engines = engines

    def choose(self, request: Request) -> SimulatedEngine:
        """The engine of a request."""
        raise NotImplementedError

    def came(self, request: Request, now: float) -> float:
        """Sent at once."""
        self.choose(request).waiting.append(request)
        return NEVER

    def began(self, request: Request, now: float) -> None:
        """Nothing to do."""

    def ended(self, request: Request, now: float) -> float:
        """Nothing to do."""
        return NEVER

    def look(self, now: float) -> float:
        """Nothing to do."""
        return NEVER


class RoundRobin(Plain):
    """Each in turn."""

    _next = -1

    def choose(self, request: Request) -> SimulatedEngine:
        """The next one."""
        self._next = (self._next + 1) % len(self.engines)
        return self.engines[self._next]


class SmgCacheAware(Plain):
    """The longest prefix, if more than 0.3 of the prompt; not an engine that has 1.5 times the mean and 64 more; else least expected wait."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        super().__init__(engines)
        self._tree: dict[bytes, set[str]] = {}

    def choose(self, request: Request) -> SimulatedEngine:
        """By its rule; what was chosen is noted as having the prompt."""
        blocks = request.blocks[: request.prompt_tokens // BLOCK_TOKENS]
        chosen = min(self._affine(request, blocks), key=self._expected_wait)
        for block in blocks:
            self._tree.setdefault(block, set()).add(chosen.name)
        return chosen

    def _affine(self, request: Request, blocks: Sequence[bytes]) -> list[SimulatedEngine]:
        matched, holders = 0, set()
        for block in blocks:
            if block not in self._tree:
                break
            matched, holders = matched + BLOCK_TOKENS, self._tree[block]
        if matched / request.prompt_tokens <= MATCH_MIN:
            return list(self.engines)
        calm = [one for one in self.engines if not self._spills(one)]
        return [one for one in calm if one.name in holders] or calm or list(self.engines)

    def _spills(self, engine: SimulatedEngine) -> bool:
        mean = sum(one.load for one in self.engines) / len(self.engines)
        return engine.load > REL_MAX * mean and engine.load > mean + ABS_MAX

    def _expected_wait(self, engine: SimulatedEngine) -> float:
        share = engine.cache_share
        tokens_a_second = 1 / COSTS["prompt_token"]
        return engine.waiting_tokens / tokens_a_second + MEMORY_SECONDS * share / (1 - share)


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter:
    request: Request
    seeker: Seeker


class Ours:
    """The gateway's rules, as ``VersionPool`` calls them."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        self._engines = {one.name: one for one in engines}
        self._loads = [EngineLoad(name=one.name, slots=SLOTS) for one in engines]
        self._queue: FairQueue[_Waiter] = FairQueue(QueueBounds(requests_max=100_000))
        self._open: dict[Request, tuple[EngineLoad, SentPrompt, float]] = {}

    def came(self, request: Request, now: float) -> float:
        """It waits, and may go at once."""
        seeker = Seeker(
            prompt_tokens=request.prompt_tokens,
            blocks=chain_blocks(request.prompt, request.key),
            session=request.session,
        )
        queued = Queued(
            key=request.key,
            tokens=request.prompt_tokens + request.new_tokens,
            size_bytes=0,
            item=_Waiter(request=request, seeker=seeker),
        )
        assert self._queue.push(queued)
        return self.look(now)

    def began(self, request: Request, now: float) -> None:
        """Its prompt is computed."""
        load, prompt, sent_at = self._open[request]
        load.answered(prompt, now - sent_at)

    def ended(self, request: Request, now: float) -> float:
        """Its place is free."""
        load, prompt, _ = self._open.pop(request)
        load.told(prompt, request.cached_tokens / request.prompt_tokens)
        load.requests -= 1
        return self.look(now)

    def look(self, now: float) -> float:
        """Whoever may go, goes."""
        while True:
            placed, again_at = place_next(self._loads, self._queue, now)
            if placed is None:
                return again_at
            one, load = placed.queued.item, placed.engine
            uncached = one.seeker.uncached(load)
            self._queue.take(placed.queued, one.seeker.prompt_tokens - uncached)
            self._open[one.request] = load, load.begin(one.seeker.blocks, uncached), now
            self._engines[load.name].waiting.append(one.request)
