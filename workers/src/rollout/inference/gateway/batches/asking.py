"""One request of a batch, to an engine: through the queue of its version, behind all that is online.

What may pass (no place, no engine, a key's limits, a version that is away) is tried again for as long as the batch lasts;
an engine that fails is tried ATTEMPTS_MAX times, so that a request that kills engines ends as an error.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass

from rollout.inference.engine_client import EngineLost
from rollout.inference.gateway.exchange import JSON_TYPE, read_answer
from rollout.inference.gateway.keys import ApiKey
from rollout.inference.gateway.pools import EngineSlot, Entrant, VersionPool
from rollout.inference.gateway.request_log import RequestLine
from rollout.inference.gateway.rules.asks import Ask, require_heard
from rollout.inference.gateway.rules.pooling import require_route
from rollout.inference.gateway.rules.refusals import ApiRefusal, engine_refusal
from rollout.inference.gateway.rules.streaming import TokenUsage, read_usage
from rollout.inference.gateway.state import GatewayState

ATTEMPTS_MAX = 3
ROUTE = "/v1/batches"
"""As the requests of batches are counted and logged."""
PASSING = frozenset(
    {"key_limit", "full", "expired", "no_engine", "engine_full", "no_model", "draining"}
)
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 1.0, 60.0


class _EngineFailed(Exception):  # noqa: N818 - a state
    """Its connection broke, or it answered with a fault of its own."""


@dataclass(slots=True, kw_only=True)
class RowCall:
    """A request of ``key``'s, and what is known of it. ``code`` is what it is counted as."""

    state: GatewayState
    key: ApiKey
    ask: Ask
    size_bytes: int
    request_id: str
    code: int = 0
    error: str = ""
    engine: str = ""
    version: str = ""
    digest: str = ""
    usage: TokenUsage | None = None
    queue_seconds: float = 0.0

    async def answer(self) -> bytes:
        """What the engine answered. Raises ApiRefusal where it will not be answered."""
        began, failures = time.monotonic(), 0
        try:
            while True:
                try:
                    return await self._try()
                except ApiRefusal as refusal:
                    if refusal.reason not in PASSING:
                        self.code, self.error = refusal.status, refusal.code or refusal.reason
                        raise
                    pause = refusal.retry_after or PAUSE_SECONDS_MIN
                except _EngineFailed as error:
                    failures += 1
                    if failures >= ATTEMPTS_MAX:
                        self.code, self.error = 502, "engine_failed"
                        message = f"engines failed {failures} times over this request"
                        raise ApiRefusal(
                            502, message, code=self.error, reason="engine_lost"
                        ) from error
                    pause = PAUSE_SECONDS_MIN
                await asyncio.sleep(min(max(pause, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX))
        finally:
            if self.code:
                self._record(began)

    async def _try(self) -> bytes:
        state, ask = self.state, self.ask
        pool = state.resolve(ask.model, self.key)
        require_route(pool.version.task, pool.version.name, ask.path)
        require_heard(pool.version.engine, ask)
        self.version, self.digest = pool.version.name, pool.version.digest
        waited = time.monotonic()
        slot = await pool.acquire(
            Entrant.of(self.key, self.ask, self.size_bytes), state.settings.queue_seconds, low=True
        )
        self.queue_seconds += time.monotonic() - waited
        self.engine = slot.engine.load.name
        try:
            state.budgets.reserve(self.key, ask.tokens, time.monotonic())
            used = None
            try:
                body = await self._ask_engine(pool, slot)
                self.usage = read_usage(body)
                pool.told(slot, self.usage)
                if self.usage is not None:
                    used = self.usage.prompt_tokens + self.usage.completion_tokens
            finally:
                state.budgets.settle(self.key, ask.tokens, used)
        finally:
            pool.release(slot)
        self.code = 200
        return body

    async def _ask_engine(self, pool: VersionPool, slot: EngineSlot) -> bytes:
        state, version = self.state, pool.version
        salt = state.ring.salt(self.key) if version.salted else None
        headers = {"Content-Type": JSON_TYPE, "X-Request-Id": uuid.uuid4().hex}
        seconds = state.settings.request_seconds
        try:
            async with asyncio.timeout(seconds):
                upstream = await slot.engine.post(
                    self.ask.path, self.ask.encode(version.name, salt), headers
                )
                try:
                    body = await read_answer(upstream)
                finally:
                    upstream.close()
        except TimeoutError as error:
            message = f"not answered within {seconds:g} s"
            raise ApiRefusal(504, message, code="request_timeout", reason="deadline") from error
        except EngineLost as error:
            pool.lost(slot.engine)
            raise _EngineFailed from error
        if upstream.status == 200:
            return body
        refusal = engine_refusal(upstream.status, body)
        if refusal.reason == "engine":
            raise _EngineFailed from refusal
        raise refusal

    def _record(self, began: float) -> None:
        metrics, usage = self.state.metrics, self.usage or TokenUsage()
        metrics.requests.labels(self.version, ROUTE, str(self.code)).inc()
        for kind in ("prompt", "cached", "completion"):
            metrics.tokens.labels(self.version, kind).inc(getattr(usage, f"{kind}_tokens"))
        if self.state.log is None:
            return
        self.state.log.add(
            RequestLine(
                time=time.time(),
                id=self.request_id,
                key=self.key.id,
                path=ROUTE,
                asked=self.ask.model,
                version=self.version,
                digest=self.digest,
                engine=self.engine,
                code=self.code,
                error=self.error,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                queue_seconds=round(self.queue_seconds, 6),
                seconds=round(time.monotonic() - began, 6),
            )
        )
