"""Traces of requests, as OpenTelemetry's GenAI conventions name them. The only importer of ``opentelemetry``.

A span says in names and numbers what was asked and answered: no prompt, no completion, no key and no other text of a
client is ever in one. Spans go through a bounded queue to a thread: a collector that is slow or gone costs spans, which
are counted, and no request anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from rollout.errors import SpecError
from rollout.inference.gateway.rules.asks import Ask
from rollout.inference.gateway.rules.pooling import CLASSIFY_PATH, EMBEDDINGS_PATH, PAIRS
from rollout.inference.gateway.rules.responses import RESPONSES_PATH
from rollout.inference.gateway.rules.trace_context import TraceParent
from rollout.inference.gateway.table import ServedVersion

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.trace import (
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        set_span_in_context,
    )
except ImportError as error:
    raise SpecError(
        f"--traces needs OpenTelemetry, which is not here ({error}): pip install 'rollout-rl[traces]'"
    ) from error

if TYPE_CHECKING:
    from rollout.inference.gateway.exchange import Exchange

log = logging.getLogger(__name__)

SPANS_MAX = 2048
"""Spans that wait for the collector; what ends while there are so many is lost."""
BATCH_SPANS = 128
BATCH_SECONDS = 1.0
SEND_SECONDS_MAX = 5.0
CLOSE_SECONDS_MAX = 3.0
TRACES_PATH = "/v1/traces"
SERVICE = "rollout-gateway"
OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    RESPONSES_PATH: "chat",
    EMBEDDINGS_PATH: "embeddings",
    **dict.fromkeys(PAIRS, "score"),
    CLASSIFY_PATH: "classify",
    "/tokenize": "tokenize",
}
"""``gen_ai.operation.name`` of each route; ``tokenize``, ``score`` and ``classify`` are words of ours, for which the conventions have none."""
NUMBERS: Mapping[str, str] = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
}
"""Fields of a body that a span tells, where they are numbers."""
NUMBER_MAX = 2**63 - 1
"""Larger ones have no form in OTLP: they would cost their whole batch."""
ERROR_CHARACTERS_MAX = 64
UNFORESEEN = 500
"""What a client is told where a request ended without a code of its own."""

_Numbers = msgspec.defstruct("_Numbers", [(name, Any, None) for name in NUMBERS])
"""What of a body is looked at: the rest is skipped, not built."""


class RequestSpan:
    """One request's span, from its head to its last byte."""

    def __init__(self, span: Span, send: Callable[[Span, int], None], clock: int) -> None:
        context = span.get_span_context()
        self.parent = TraceParent(
            trace_id=f"{context.trace_id:032x}",
            span_id=f"{context.span_id:016x}",
            sampled=context.trace_flags.sampled,
        )
        """What an engine hangs its own span on."""
        self.recording = span.is_recording()
        self._span = span
        self._send = send
        self._clock = clock

    def sent(self, engine: str) -> None:
        """An engine is asked."""
        if self.recording:
            self._span.add_event("sent", {"rollout.engine": engine}, self._now())

    def first_token(self, seconds: float) -> None:
        """A stream's first event has come, ``seconds`` after the request's head."""
        if self.recording:
            name = "gen_ai.response.time_to_first_chunk"
            self._span.set_attribute(name, seconds)
            self._span.add_event("first_token", {name: seconds}, self._now())

    def end(self, exchange: Exchange) -> None:
        """It has ended. What it ended with is an error from 500 on; below, only the word of it is told."""
        if not self.recording:
            return
        code = exchange.code or UNFORESEEN
        error = exchange.error[:ERROR_CHARACTERS_MAX]
        self._span.set_attributes(_describe_outcome(exchange))
        self._span.set_attribute("http.response.status_code", code)
        if code >= 400:
            self._span.set_attribute("error.type", error or str(code))
        if code >= 500:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._send(self._span, self._now())

    def _now(self) -> int:
        return self._clock + time.monotonic_ns()


class RequestTraces:
    """Spans on their way to the collector at ``url``, of a ``share`` of the requests that belong to no trace yet.

    A client's own ``traceparent`` says for its request whether it is recorded. ``lost`` is called, from any thread, with
    how many spans were lost.
    """

    def __init__(
        self,
        url: str,
        share: float,
        *,
        host: str,
        port: int,
        lost: Callable[[int], None],
        spans_max: int = SPANS_MAX,
        send_seconds_max: float = SEND_SECONDS_MAX,
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        self._lost = lost
        self._spans_max = spans_max
        self._sender = _Sender(OTLPSpanExporter(endpoint=url, timeout=send_seconds_max), url, lost)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create({"service.name": SERVICE}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._sender,
                max_queue_size=spans_max,
                max_export_batch_size=min(BATCH_SPANS, spans_max),
                schedule_delay_millis=batch_seconds * 1000,
            )
        )
        self._tracer = self._provider.get_tracer("rollout.gateway")
        self._server: dict[str, str | int] = {"server.address": host, "server.port": port}
        self._queued = 0

    def begin(
        self, ask: Ask, version: ServedVersion, traceparent: str, began_at: float
    ) -> RequestSpan:
        """The span of a request that was admitted. ``began_at`` is in monotonic seconds."""
        clock = time.time_ns() - time.monotonic_ns()
        operation = OPERATIONS[ask.path]
        span = self._tracer.start_span(
            f"{operation} {ask.model}",
            context=_context_of(TraceParent.parse(traceparent)),
            kind=SpanKind.SERVER,
            start_time=clock + round(began_at * 1e9),
        )
        if span.is_recording():
            span.set_attributes(
                {
                    **self._server,
                    **_describe_ask(ask, version),
                    "gen_ai.operation.name": operation,
                }
            )
        return RequestSpan(span, self._end, clock)

    def close(self) -> None:
        """Send what waits, for as long as CLOSE_SECONDS_MAX. Blocks."""
        ending = threading.Thread(
            target=self._provider.shutdown, name="traces-end", daemon=True
        )  # its own bound is half a minute
        ending.start()
        ending.join(CLOSE_SECONDS_MAX)

    def _end(self, span: Span, now: int) -> None:
        if self._queued - self._sender.taken >= self._spans_max:
            self._lost(1)
            return
        self._queued += 1
        span.end(now)


class _Sender(SpanExporter):
    """What the thread of the queue calls. ``taken``: spans that have left the queue. Says once when the collector is gone, and when it is back."""

    def __init__(self, exporter: SpanExporter, url: str, lost: Callable[[int], None]) -> None:
        self.taken = 0
        self._exporter = exporter
        self._url = url
        self._lost = lost
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed:
            self._lost(len(spans))
        if failed and not self._failing:
            log.warning("the collector takes no traces, they are lost url=%s", self._url)
        elif self._failing and not failed:
            log.warning("the collector takes traces again url=%s", self._url)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def parse_collector(url: str, share: float) -> str:
    """Where spans are sent: ``url``, with the path of OTLP where it has none. Raises SpecError."""
    expected = SpecError(
        f"--traces {url!r:.200}: expected a collector's http:// or https:// address, such as"
        " http://127.0.0.1:4318"
    )
    try:
        parts = urlsplit(url)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise expected from error
    if not known or parts.query or parts.fragment:
        raise expected
    if parts.username is not None:
        raise SpecError(
            "--traces: has a name or password, which others on this machine can read; put it into"
            " the variable OTEL_EXPORTER_OTLP_HEADERS"
        )
    if not 0 <= share <= 1:
        raise SpecError(f"--traces-share {share}: expected a share from 0 to 1")
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{TRACES_PATH}"


def _context_of(parent: TraceParent | None) -> Context:
    if parent is None:
        return Context()
    context = SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT),
    )
    return set_span_in_context(NonRecordingSpan(context), Context())


def _describe_ask(ask: Ask, version: ServedVersion) -> dict[str, str | int | float | bool]:
    """Names of the table and routes of ours, and numbers of the client's."""
    given = msgspec.structs.asdict(msgspec.json.decode(ask.fields, type=_Numbers))
    numbers = {NUMBERS[name]: value for name, value in given.items() if _is_number(value)}
    return {
        **numbers,
        "gen_ai.provider.name": "rollout",
        "gen_ai.request.model": ask.model,
        "gen_ai.request.stream": ask.stream,
        "gen_ai.response.model": version.name,
        "http.request.method": "POST",
        "http.route": ask.path,
        "url.path": ask.path,
        "rollout.weights.digest": version.digest,
        "rollout.engine.kind": version.engine,
    }


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -NUMBER_MAX <= value <= NUMBER_MAX
    )


def _describe_outcome(exchange: Exchange) -> dict[str, str | int | float | Sequence[str]]:
    told: dict[str, str | int | float | Sequence[str]] = {
        "rollout.engine": exchange.engine,
        "rollout.retries": exchange.retries,
        "rollout.queue_seconds": exchange.queue_seconds,
    }
    usage, notes = exchange.usage, exchange.notes
    if usage is not None:
        told["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        told["gen_ai.usage.output_tokens"] = usage.completion_tokens
        told["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if notes is not None and notes.finish_reasons:
        told["gen_ai.response.finish_reasons"] = tuple(notes.finish_reasons)
    if notes is not None and notes.id:
        told["gen_ai.response.id"] = notes.id
    return told
