"""One request of a model, from its head to the last byte of its answer.

Until the first byte of an answer is sent a failed engine is another's chance; from then on a failure is an event in the stream. The
client that leaves cancels the task, and what the task holds is let go: the place, the engine's connection, the budget.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import HttpVersion11, web

from rollout.inference.engine_client import AnswerTooLarge, EngineAnswer, EngineLost, NotReached
from rollout.inference.gateway.metrics import build_exemplar
from rollout.inference.gateway.pools import EngineSlot, Entrant, VersionPool
from rollout.inference.gateway.request_log import BODY_BYTES_MAX, BodyKeeper, RequestLine
from rollout.inference.gateway.rules.refusals import ApiRefusal, engine_refusal, unavailable
from rollout.inference.gateway.rules.responses import RESPONSES_PATH
from rollout.inference.gateway.rules.streaming import (
    AnswerNotes,
    EventRelay,
    StreamBroken,
    TokenUsage,
    read_usage,
)
from rollout.inference.gateway.rules.trace_context import TraceParent

if TYPE_CHECKING:
    from rollout.inference.gateway.keys import ApiKey
    from rollout.inference.gateway.live import LiveRequest
    from rollout.inference.gateway.rules.asks import Ask
    from rollout.inference.gateway.state import GatewayState
    from rollout.inference.gateway.traces import RequestSpan

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 2
"""Engines that a request is given to: one that brings them down shall not bring down all."""
RETRIES_MAX = 16
"""Of servers that come and go and have not been reached: each waits until they say that they are ready."""
WRITE_BYTES_MAX = 1 << 16
"""What waits for a client that does not keep up before its engine is held back."""
CLIENT_CHARACTERS_MAX = 120
LEFT = 499
"""In our own counts only: the client left."""
REQUEST_ID = web.RequestKey("id", str)
"""Of a request: what its answer's ``x-request-id`` says."""
SESSION_HEADER = "X-Session-Id"
VERSION_HEADER = "X-Rollout-Model-Version"
DIGEST_HEADER = "X-Rollout-Weights-Digest"
JSON_TYPE = "application/json"
STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request that was admitted. Times are monotonic seconds; ``code`` is what it is counted as."""

    state: GatewayState
    request: web.Request
    request_id: str
    key: ApiKey
    ask: Ask
    pool: VersionPool
    live: LiveRequest
    size_bytes: int
    headers: dict[str, str]
    began_at: float
    code: int = 0
    response: web.StreamResponse | None = None
    usage: TokenUsage | None = None
    first_byte_at: float = 0.0
    queue_seconds: float = 0.0
    engine: str = ""
    error: str = ""
    retries: int = 0
    body: bytes = b""
    kept: BodyKeeper | None = None
    relay: EventRelay | None = field(default=None)
    span: RequestSpan | None = None
    notes: AnswerNotes | None = None
    _chunked: bool = True

    async def answer(self) -> web.StreamResponse:
        """Answer it. Raises ApiRefusal: before the first byte, or after it where ``response`` is set."""
        attempts = 0
        while True:
            slot = await self._wait_for_place()
            try:
                return await self._attempt(slot)
            except EngineLost as error:
                self.pool.lost(slot.engine)
                log.warning(
                    "engine is lost to a request id=%s engine=%s error=%r",
                    self.request_id,
                    self.engine,
                    error,
                )
                if self.first_byte_at:
                    raise ApiRefusal(
                        502, "the engine was lost", code="engine_lost", reason="engine_lost"
                    ) from error
                attempts += not isinstance(error, NotReached)
            finally:
                self.pool.told(slot, self.usage)
                self.pool.release(slot)
            if attempts == ATTEMPTS_MAX or self.retries == RETRIES_MAX:
                break
            self.retries += 1
            self.state.metrics.retries.inc()
        raise unavailable("the engines that were asked have failed; try again", reason="no_engine")

    def record(self) -> None:
        """Count it, once, at its end."""
        metrics, name, now = self.state.metrics, self.pool.version.name, time.monotonic()
        metrics.requests.labels(name, self.ask.path, str(self.code)).inc()
        trace = build_exemplar(None if self.span is None else self.span.parent)
        metrics.seconds.labels(name).observe(now - self.began_at, trace)
        metrics.queue_seconds.labels(name).observe(self.queue_seconds, trace)
        if self.first_byte_at:
            streaming = str(self.ask.stream).lower()
            waited = self.first_byte_at - self.began_at
            metrics.first_byte.labels(name, streaming).observe(waited, trace)
        if self.relay is not None and self.relay.chunks > 1:
            mean = (now - self.first_byte_at) / (self.relay.chunks - 1)
            metrics.inter_chunk.labels(name).observe(mean, trace)
        if self.usage is not None:
            metrics.tokens.labels(name, "prompt").inc(self.usage.prompt_tokens)
            metrics.tokens.labels(name, "cached").inc(self.usage.cached_tokens)
            metrics.tokens.labels(name, "completion").inc(self.usage.completion_tokens)
        if self.state.log is not None:
            self.state.log.add(self._line(now))
        if self.span is not None:
            self.span.end(self)

    @property
    def trace_id(self) -> str:
        """Of our span, else of the client's; empty: of no trace."""
        given = TraceParent.parse(read_header(self.request, "traceparent"))
        parent = given if self.span is None else self.span.parent
        return "" if parent is None else parent.trace_id

    def _line(self, now: float) -> RequestLine:
        usage, kept, version = self.usage or TokenUsage(), self.kept, self.pool.version
        return RequestLine(
            time=time.time(),
            id=self.request_id,
            key=self.key.id,
            path=self.ask.path,
            asked=self.ask.model,
            version=version.name,
            digest=version.digest,
            engine=self.engine,
            code=self.code,
            error=self.error,
            stream=self.ask.stream,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            queue_seconds=round(self.queue_seconds, 6),
            first_byte_seconds=round(max(self.first_byte_at - self.began_at, 0.0), 6),
            seconds=round(now - self.began_at, 6),
            retries=self.retries,
            client=read_header(self.request, "User-Agent")[:CLIENT_CHARACTERS_MAX],
            client_retries=read_header(self.request, "x-stainless-retry-count")[:8],
            trace=self.trace_id,
            input=self.body.decode()
            if kept is not None and len(self.body) <= BODY_BYTES_MAX
            else "",
            input_cut=kept is not None and len(self.body) > BODY_BYTES_MAX,
            output="" if kept is None else kept.text(),
            output_cut=kept is not None and kept.cut,
        )

    @property
    def tokens_used(self) -> int | None:
        """What it cost; None where nobody knows."""
        if self.usage is None:
            return None
        return self.usage.prompt_tokens + self.usage.completion_tokens

    async def _wait_for_place(self) -> EngineSlot:
        began = time.monotonic()
        session = read_header(self.request, SESSION_HEADER).encode()
        entrant = Entrant.of(self.key, self.ask, self.size_bytes, session)
        slot = await self.pool.acquire(entrant, self.state.settings.queue_seconds)
        self.queue_seconds += time.monotonic() - began
        self.engine = slot.engine.load.name
        return slot

    async def _send(self, slot: EngineSlot) -> EngineAnswer:
        version = self.pool.version
        salt = self.state.ring.salt(self.key) if version.salted else None
        headers = {"Content-Type": JSON_TYPE, "X-Request-Id": uuid.uuid4().hex}
        if self.span is not None:
            headers["traceparent"] = self.span.parent.render()
            self.span.sent(self.engine)
        body = self.ask.encode(version.name, salt)
        now = time.monotonic()
        slot.sent_at = now if self.ask.stream else 0.0
        ours = now - self.began_at - self.queue_seconds
        self.state.metrics.overhead.observe(max(ours, 0.0))
        return await slot.engine.post(self.ask.path, body, headers)

    async def _attempt(self, slot: EngineSlot) -> web.StreamResponse:
        if slot.engine.replica.away:
            return await self.state.others.relay(self, slot)
        upstream = await self._send(slot)
        try:
            return await self._pass_on(slot, upstream)
        finally:
            upstream.close()

    async def _pass_on(self, slot: EngineSlot, upstream: EngineAnswer) -> web.StreamResponse:
        if self.ask.stream and upstream.status == 200:
            return await self._stream(slot, upstream)
        body = await read_answer(upstream)
        if upstream.status != 200:
            self.pool.answered(slot)
            raise engine_refusal(upstream.status, body)
        self.begun(slot)
        if self.kept is not None:
            self.kept.add(body)
        self.usage = read_usage(body)
        if self.notes is not None:
            self.notes.look(body)
        self.code = 200
        milliseconds = str(round((time.monotonic() - self.began_at) * 1000))
        headers = {**self.headers, "openai-processing-ms": milliseconds}
        return web.Response(body=body, content_type=JSON_TYPE, headers=headers)

    async def _stream(self, slot: EngineSlot, upstream: EngineAnswer) -> web.StreamResponse:
        self.relay = relay = EventRelay(
            keep_usage=self.ask.usage_asked,
            responses=self.ask.path == RESPONSES_PATH,
            notes=self.notes,
        )
        response = await self._open_stream()
        writer = self.request.writer
        upstream.hand_on(partial(self._take, slot, upstream))
        try:
            await upstream.moved()
            while not upstream.ended:
                await writer.drain()
                self.live.writing = False
                upstream.resume()
                await upstream.moved()
            relay.end()
        except StreamBroken as error:
            raise EngineLost(str(error)) from error
        finally:
            self.usage = relay.usage
        self.code = 500 if relay.failed else 200
        await response.write_eof()
        return response

    def _take(self, slot: EngineSlot, upstream: EngineAnswer, data: bytes) -> bool:
        """What an engine has said goes to the client, in the engine's own callback; whether the client keeps up."""
        relay = self.relay
        assert relay is not None
        now = time.monotonic()
        slot.engine.heard_at = self.live.moved_at = now
        if not self.first_byte_at:
            self.begun(slot)
        try:
            whole = relay.feed(data)
        except StreamBroken as error:
            upstream.fail(error)
            return True
        transport = self.request.transport
        if not whole or transport is None or transport.is_closing():
            return True
        if self.kept is not None:
            self.kept.add(whole)
        transport.write(b"%x\r\n%b\r\n" % (len(whole), whole) if self._chunked else whole)
        if transport.get_write_buffer_size() <= WRITE_BYTES_MAX:
            return True
        self.live.writing = True
        return False

    async def _open_stream(self) -> web.StreamResponse:
        """The client's stream: the one that an engine before this one had begun, and had said nothing in."""
        if self.response is None:
            self.response = web.StreamResponse(headers={**self.headers, **STREAM_HEADERS})
            await self.response.prepare(self.request)
            self.live.write = self.response.write
            self._chunked = self.request.version >= HttpVersion11
        return self.response

    def begun(self, slot: EngineSlot) -> None:
        """The first byte of its answer is there."""
        self.first_byte_at = self.live.moved_at = time.monotonic()
        self.pool.answered(slot)
        if self.span is not None and self.ask.stream:
            self.span.first_token(self.first_byte_at - self.began_at)


def read_header(request: web.Request, name: str) -> str:
    """A header's text, for logs and digests; bytes of it that are no UTF-8 are question marks."""
    return request.headers.get(name, "").encode(errors="replace").decode()


async def read_answer(upstream: EngineAnswer) -> bytes:
    """A whole answer, within bounds. Raises EngineLost, or ApiRefusal."""
    try:
        return await upstream.read()
    except AnswerTooLarge as error:
        raise ApiRefusal(
            502, "the engine's answer is too large", code="engine_error", reason="engine"
        ) from error


async def end_refused(
    exchange: Exchange | None,
    refusal: ApiRefusal,
    headers: dict[str, str],
    seconds_max: float = 2.0,
) -> web.StreamResponse:
    """Tell a client of a refusal: as the answer, or as the last event of a stream that has begun."""
    response = None if exchange is None else exchange.response
    if response is None or not response.prepared:
        return web.Response(
            status=refusal.status,
            body=refusal.body,
            content_type=JSON_TYPE,
            headers={**headers, **refusal.headers},
        )
    assert exchange is not None
    try:
        async with asyncio.timeout(seconds_max):
            relay = exchange.relay
            await response.write(refusal.event if relay is None else relay.refusal(refusal))
            await response.write_eof()
    except (TimeoutError, ConnectionError):
        transport = exchange.request.transport
        if transport is not None:
            transport.abort()
    return response
