"""The engines of one version and who waits for them: one queue, slots, health, and a client for each socket.

A request is counted where it is sent and until it ends, by whatever way. An engine that fails a request or its health
check gets no more until it answers again; requests wait for that in the queue, as long as any may. One that says nothing at
all loses its requests to another engine, if there is one; one that leaves the table keeps those that it has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self
from weakref import WeakSet

import msgspec

from rollout.inference.engine_client import EngineAnswer, EngineLost
from rollout.inference.gateway.keys import ApiKey
from rollout.inference.gateway.metrics import GatewayMetrics
from rollout.inference.gateway.rules.asks import Ask
from rollout.inference.gateway.rules.placing import Seeker, find_place, place_next
from rollout.inference.gateway.rules.queueing import FairQueue, QueueBounds, Queued
from rollout.inference.gateway.rules.refusals import ApiRefusal, unavailable
from rollout.inference.gateway.rules.routing import EngineLoad, SentPrompt, chain_blocks
from rollout.inference.gateway.rules.streaming import TokenUsage
from rollout.inference.gateway.table import EngineReplica, ServedVersion

log = logging.getLogger(__name__)

HEALTH_SECONDS_MAX = 5.0
HEALTH_AGAIN_SECONDS = 0.5
SILENT_CHECKS = 3
"""Health checks in a row without an answer, and no byte of any answer meanwhile: the engine hangs."""
KEPT_SHARE = 4
"""One place in so many is never given to a low request."""
BUSY_SHARE = 4
"""Low requests have one place in so many while others ask, and BUSY_SECONDS longer: what computes together slows each other."""
BUSY_SECONDS = 5.0


class EngineClient:
    """One engine's socket, and what it has been asked.

    ``heard_at``: when the last byte of any answer came, monotonic; ``silent``: health checks in a row that were not answered.
    """

    def __init__(self, replica: EngineReplica) -> None:
        self.replica = replica
        self.load = EngineLoad(name=replica.name, slots=replica.slots, ready=False)
        self.heard_at = float("-inf")
        self.silent = 0
        self._answers: WeakSet[EngineAnswer] = WeakSet()

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> EngineAnswer:
        """Send a body; returns when the head of the answer is there. Raises EngineLost."""
        if self.replica.key:
            headers = {**headers, "Authorization": f"Bearer {self.replica.key}"}
        answer = await EngineAnswer.ask(self.replica.socket, "POST", path, body, headers)
        self._answers.add(answer)
        try:
            await answer.head()
        except BaseException:
            answer.close()
            raise
        return answer

    async def healthy(self) -> bool:
        """Whether it answers its health check."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS_MAX):
                path = "/readyz" if self.replica.away else "/health"
                answer = await EngineAnswer.ask(self.replica.socket, "GET", path, b"", {})
                try:
                    return await answer.head() == 200
                finally:
                    answer.close()
        except (EngineLost, TimeoutError):
            return False

    def hangs(self, now: float) -> bool:
        """Whether it has requests and has said nothing for so long that it will not."""
        quiet = now - self.heard_at > SILENT_CHECKS * HEALTH_AGAIN_SECONDS
        return self.silent >= SILENT_CHECKS and quiet and self.load.requests > 0

    def cut(self, why: str) -> None:
        """Break every connection: whoever waits for an answer hears so, and may ask another engine."""
        for one in tuple(self._answers):
            one.fail(EngineLost(why))


@dataclass(slots=True, kw_only=True, eq=False)
class EngineSlot:
    """One request's place with an engine, which was given ``prompt``.

    ``sent_at`` is 0 where the first byte would not tell how long the prompt took: the answer comes as a whole.
    """

    engine: EngineClient
    prompt: SentPrompt
    low: bool = False
    sent_at: float = 0.0
    answered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """Who wants a place: whose, how large, how its prompt begins, and of which conversation it is."""

    key: str
    tokens: int
    prompt_tokens: int
    size_bytes: int
    lead: bytes
    salt: str
    session: bytes = b""

    @classmethod
    def of(cls, key: ApiKey, ask: Ask, size_bytes: int, session: bytes = b"") -> Self:
        """The holder of a key with a request; ``session``: what it says of its conversation itself."""
        return cls(
            key=key.id,
            tokens=ask.tokens,
            prompt_tokens=ask.prompt_tokens,
            size_bytes=size_bytes,
            lead=ask.lead,
            salt=key.id,
            session=session or ask.session,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter:
    seeker: Seeker
    low: bool
    granted: asyncio.Future[EngineSlot]


class VersionPool:
    """One version being served. ``retired``: it answers what it has, and takes nothing more."""

    def __init__(
        self, version: ServedVersion, bounds: QueueBounds, metrics: GatewayMetrics
    ) -> None:
        self.version = version
        self.retired = False
        self._queue: FairQueue[_Waiter] = FairQueue(bounds)
        self._low: FairQueue[_Waiter] = FairQueue(bounds)
        self._low_sent = 0
        self._asked_at = float("-inf")
        self._metrics = metrics
        self.engines = [EngineClient(one) for one in version.replicas]
        self._left: list[EngineClient] = []
        self._again: asyncio.TimerHandle | None = None

    @property
    def open_requests(self) -> int:
        """Waiting or with an engine."""
        left = sum(one.load.requests for one in self._left)
        return self._queue.requests + self._low.requests + self._sent + left

    @property
    def slots(self) -> int:
        """Requests that all its engines together answer at a time."""
        return sum(one.load.slots for one in self.engines)

    @property
    def ready(self) -> bool:
        """Whether any engine takes requests."""
        return any(one.load.ready for one in self.engines)

    @property
    def away(self) -> bool:
        """Whether its requests are for servers that have gateways of their own."""
        return any(one.away for one in self.version.replicas)

    def serves(self, version: ServedVersion) -> bool:
        """Whether it is these weights under this name, be it by other engines."""
        return msgspec.structs.replace(version, replicas=self.version.replicas) == self.version

    def take(self, version: ServedVersion) -> None:
        """Other engines for the same weights: who waits goes on waiting, and what is known of those that stay is kept."""
        known = {(one.replica.name, one.replica.socket): one for one in self.engines}
        found = [known.pop((one.name, one.socket), None) for one in version.replicas]
        self.engines = [
            EngineClient(replica) if one is None else one
            for one, replica in zip(found, version.replicas, strict=True)
        ]
        for one, replica in zip(self.engines, version.replicas, strict=True):
            one.load.slots = replica.slots
        for one in known.values():
            one.load.ready = False
            log.info("engine leaves version=%s engine=%s", version.name, one.load.name)
        self._left += known.values()
        self.version = version
        self.dispatch()

    def forget_left(self) -> None:
        """Engines that have left and have nothing open are no more."""
        for one in [one for one in self._left if not one.load.requests]:
            self._left.remove(one)
            if one.load.name not in {other.load.name for other in self.engines}:
                self._metrics.forget_engine(self.version.name, one.load.name)

    async def acquire(
        self, entrant: Entrant, seconds_max: float, *, low: bool = False
    ) -> EngineSlot:
        """A place with an engine, waited for in turn. ``low``: behind all others, and of the spare places only.

        Raises ApiRefusal when the queue is full or time is up.
        """
        queue, now = self._low if low else self._queue, time.monotonic()
        if not low:
            self._asked_at = now
        queued = self._enter(entrant, low=low)
        waiter = queued.item
        if not self._queue.requests and not queue.requests and (not low or self._spare > 0):
            place = find_place(self._loads, waiter.seeker, now)
            if place is not None and place.ripe_at <= now:
                return self._begin(waiter, place.engine)
        if not queue.push(queued):
            raise self._full()
        self.dispatch()
        slot = None
        try:
            async with asyncio.timeout(seconds_max):
                slot = await waiter.granted
        except TimeoutError:
            raise self._expired(seconds_max) from None
        finally:
            queue.remove(queued)
            if slot is None and waiter.granted.done() and not waiter.granted.cancelled():
                self.release(
                    waiter.granted.result()
                )  # granted in the moment that nobody waited any more
        return slot

    def release(self, slot: EngineSlot) -> None:
        """Its request has ended, however; the next one gets the place."""
        self.answered(slot)
        slot.engine.load.requests -= 1
        self._low_sent -= slot.low
        self.dispatch()

    def answered(self, slot: EngineSlot) -> None:
        """The first byte has come, or none will; idempotent."""
        if not slot.answered:
            slot.answered = True
            seconds = time.monotonic() - slot.sent_at if slot.sent_at else 0.0
            slot.engine.load.answered(slot.prompt, seconds)

    def told(self, slot: EngineSlot, usage: TokenUsage | None) -> None:
        """What its answer says of the prompt: how much of it the engine had in its cache."""
        if usage is not None and usage.prompt_tokens > 0:
            slot.engine.load.told(slot.prompt, usage.cached_tokens / usage.prompt_tokens)

    def lost(self, engine: EngineClient) -> None:
        """It failed a request: no more until its health check says otherwise."""
        if engine.load.ready:
            log.warning("engine is lost version=%s engine=%s", self.version.name, engine.load.name)
        engine.load.ready = False
        engine.load.forget()

    def dispatch(self) -> None:
        """Give free places to who waits, by the rules; and of what is then to spare, to the low ones."""
        now = time.monotonic()
        again_at = self._place(self._queue, now)
        if not self._queue.requests:
            again_at = min(again_at, self._place(self._low, now, low=True))
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if again_at < float("inf"):
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(again_at - now, self.dispatch)

    async def watch_health(self) -> None:
        """Ask every engine whether it lives. One that hangs loses its requests, where another can answer them."""
        asked = list(self.engines)
        answers = await asyncio.gather(*(one.healthy() for one in asked))
        for engine, healthy in zip(asked, answers, strict=True):
            engine.silent = 0 if healthy else engine.silent + 1
            if not healthy:
                self.lost(engine)
            elif not engine.load.ready and engine in self.engines:
                log.info(
                    "engine is ready version=%s engine=%s", self.version.name, engine.load.name
                )
                engine.load.ready = True
        for engine in asked:
            if self.ready and engine.hangs(time.monotonic()):
                log.warning(
                    "engine hangs version=%s engine=%s", self.version.name, engine.load.name
                )
                engine.cut("it hangs")
        self.dispatch()

    def measure(self) -> None:
        """Set the gauges."""
        name, metrics = self.version.name, self._metrics
        metrics.queued_requests.labels(name).set(self._queue.requests)
        metrics.queued_tokens.labels(name).set(self._queue.tokens)
        slots = sum(one.load.slots for one in self.engines if one.load.ready)
        wanted = self._queue.requests + self._sent
        metrics.saturation.labels(name).set(wanted / max(slots, 1))
        for one in self.engines:
            metrics.inflight_requests.labels(name, one.load.name).set(one.load.requests)
            metrics.engine_ready.labels(name, one.load.name).set(one.load.ready)

    def close(self) -> None:
        """Break what is open."""
        if self._again is not None:
            self._again.cancel()
        for one in (*self.engines, *self._left):
            one.cut("the gateway ends")

    @property
    def _sent(self) -> int:
        return sum(one.load.requests for one in self.engines)

    @property
    def _spare(self) -> int:
        """Places that low requests may have now, beside those that they have."""
        ready = [one.load for one in self.engines if one.load.ready]
        slots = sum(one.slots for one in ready)
        free = slots - sum(one.requests for one in ready) - max(1, slots // KEPT_SHARE)
        busy = self._sent > self._low_sent or time.monotonic() - self._asked_at < BUSY_SECONDS
        most = max(1, slots // BUSY_SHARE) if busy else slots
        return min(free, most - self._low_sent)

    @property
    def _loads(self) -> list[EngineLoad]:
        return [one.load for one in self.engines]

    def _enter(self, entrant: Entrant, *, low: bool) -> Queued[_Waiter]:
        several = len(self.engines) > 1
        seeker = Seeker(
            prompt_tokens=entrant.prompt_tokens,
            blocks=chain_blocks(entrant.lead, entrant.salt) if several else (),
            session=entrant.session,
        )
        waiter = _Waiter(seeker=seeker, low=low, granted=asyncio.get_running_loop().create_future())
        return Queued(
            key=entrant.key, tokens=entrant.tokens, size_bytes=entrant.size_bytes, item=waiter
        )

    def _place(self, queue: FairQueue[_Waiter], now: float, *, low: bool = False) -> float:
        """Grant what there is; returns when to look again though nothing has ended."""
        loads = self._loads
        while not low or self._spare > 0:
            placed, again_at = place_next(loads, queue, now)
            if placed is None:
                return again_at
            waiter, load = placed.queued.item, placed.engine
            seeker = waiter.seeker
            queue.take(placed.queued, seeker.prompt_tokens - seeker.uncached(load))
            if not waiter.granted.done():
                waiter.granted.set_result(self._begin(waiter, load))
        return float("inf")

    def _begin(self, waiter: _Waiter, load: EngineLoad) -> EngineSlot:
        engine = next(one for one in self.engines if one.load is load)
        prompt = load.begin(waiter.seeker.blocks, waiter.seeker.uncached(load))
        self._low_sent += waiter.low
        return EngineSlot(engine=engine, prompt=prompt, low=waiter.low)

    def _full(self) -> ApiRefusal:
        rate = sum(one.load.rate for one in self.engines if one.load.ready)
        seconds = self._queue.tokens / rate if rate else 5.0
        message = f"{self.version.name}: too many requests wait; try again"
        return unavailable(message, reason="full", retry_after=seconds)

    def _expired(self, seconds: float) -> ApiRefusal:
        reason = "expired" if self.ready else "no_engine"
        what = "no place was free" if self.ready else "no engine was ready"
        message = f"{self.version.name}: {what} within {seconds:g} s; try again"
        return unavailable(message, reason=reason, retry_after=5)


def find_pool(pools: Sequence[VersionPool], name: str) -> VersionPool | None:
    """The pool of a version's name."""
    return next((one for one in pools if one.version.name == name), None)
