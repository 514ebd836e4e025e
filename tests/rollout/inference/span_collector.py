"""A collector of traces on loopback: OTLP over HTTP, decoded; or one that takes a connection and never answers."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1 import trace_pb2

from rollout.inference.gateway.state import GatewayState

LOST = "rollout_gateway_spans_lost_total"
WAIT_SECONDS = 60.0
KINDS = {value: name.removeprefix("SPAN_KIND_") for name, value in trace_pb2.Span.SpanKind.items()}
STATUSES = {
    value: name.removeprefix("STATUS_CODE_") for name, value in trace_pb2.Status.StatusCode.items()
}


@dataclass(frozen=True)
class Told:
    """One span as it came over the wire; ids in hex, times in nanoseconds."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    begun: int
    ended: int
    status: str
    words: str
    attributes: dict[str, Any]
    events: dict[str, int]
    service: str


@dataclass
class Collector:
    """What has come. ``raw`` are the bodies; ``release`` lets a hanging one answer."""

    url: str
    spans: list[Told] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    hung: int = 0
    release: threading.Event = field(default_factory=threading.Event)

    def named(self, name: str) -> list[Told]:
        return [one for one in self.spans if one.name == name]

    def wait(self, holds: Callable[[Collector], object]) -> None:
        """Until something holds; for tests without a loop."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds(self):
            assert time.monotonic() < deadline, [one.name for one in self.spans]
            time.sleep(0.02)


@contextmanager
def collecting(*, hangs: bool = False, port: int = 0) -> Iterator[Collector]:
    """Listen until the block ends. ``hangs``: requests are read and not answered until ``release``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if hangs:
                found.hung += 1
                found.release.wait()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found.paths.append(self.path)
            found.raw.append(body)
            found.spans += _decode(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    found = Collector(url=f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found
    finally:
        found.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


def lost_by(state: GatewayState) -> float:
    """Spans that a gateway says were lost."""
    page = state.metrics.render().decode().splitlines()
    return float(next(one for one in page if one.startswith(LOST)).split()[1])


def _decode(body: bytes) -> list[Told]:
    asked = ExportTraceServiceRequest.FromString(body)
    return [
        Told(
            name=span.name,
            kind=KINDS[span.kind],
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            begun=span.start_time_unix_nano,
            ended=span.end_time_unix_nano,
            status=STATUSES[span.status.code],
            words=span.status.message,
            attributes={one.key: _value(one.value) for one in span.attributes},
            events={one.name: one.time_unix_nano for one in span.events},
            service=next(
                (
                    one.value.string_value
                    for one in resource.resource.attributes
                    if one.key == "service.name"
                ),
                "",
            ),
        )
        for resource in asked.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found
