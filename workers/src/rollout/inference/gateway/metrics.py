"""What a gateway counts of itself. Labels are names of the table and routes of ours, never a client's text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

if TYPE_CHECKING:
    from rollout.inference.gateway.rules.trace_context import TraceParent

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
FIRST_BYTE = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
CHUNK = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"


class GatewayMetrics:
    """The series of one gateway process; ``render`` is its page."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        count, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        measure = partial(Histogram, registry=registry)
        a_version = ("version",)

        what = "Requests that have ended; code 499: the client left."
        self.requests = count("rollout_gateway_requests", what, ("version", "route", "code"))
        self.rejected = count("rollout_gateway_rejected", "Requests refused by us.", ("reason",))
        self.retries = count("rollout_gateway_retries", "Requests sent to a second engine.")
        what = "Requests sent on to a candidate: answered by it, or fell back to the servers that are here."
        self.canary = count("rollout_gateway_canary_requests", what, ("outcome",))
        for outcome in ("answered", "fell_back"):
            self.canary.labels(outcome)  # 0, so that a rate sees the first
        what = "Tokens of ended requests, as engines counted them."
        self.tokens = count("rollout_gateway_tokens", what, ("version", "kind"))
        what = "Lines of the request log that were not written."
        self.log_dropped = count("rollout_gateway_log_dropped", what)

        what = "Spans of traces that no collector took."
        self.spans_lost = count("rollout_gateway_spans_lost", what)

        what = "From the request's head to the last byte of its answer."
        self.seconds = measure("rollout_gateway_request_seconds", what, a_version, buckets=LATENCY)
        what = "Time spent waiting for an engine."
        self.queue_seconds = measure(
            "rollout_gateway_queue_seconds", what, a_version, buckets=FIRST_BYTE
        )
        what = "From the request's head to the first byte of its answer."
        labels = ("version", "streaming")
        self.first_byte = measure(
            "rollout_gateway_first_byte_seconds", what, labels, buckets=FIRST_BYTE
        )
        what = "Mean time between two chunks of one stream."
        self.inter_chunk = measure(
            "rollout_gateway_inter_chunk_seconds", what, a_version, buckets=CHUNK
        )
        what = "Our own time before the engine got the request, without the queue."
        self.overhead = measure("rollout_gateway_overhead_seconds", what, buckets=OVERHEAD)

        an_engine = ("version", "engine")
        self.queued_requests = gauge("rollout_gateway_queued_requests", "Waiting now.", a_version)
        self.queued_tokens = gauge(
            "rollout_gateway_queued_tokens", "Tokens of what waits.", a_version
        )
        self.inflight_requests = gauge(
            "rollout_gateway_inflight_requests", "With an engine now.", an_engine
        )
        what = "1 where an engine answers its health check."
        self.engine_ready = gauge("rollout_gateway_engine_ready", what, an_engine)
        what = "Requests queued and with engines, over what engines take at a time."
        self.saturation = gauge("rollout_endpoint_saturation_ratio", what, a_version)

    def forget_version(self, version: str) -> None:
        """A version is served no more: its gauges would stand still for ever."""
        for gauge in (self.queued_requests, self.queued_tokens, self.saturation):
            gauge.remove_by_labels({"version": version})
        for gauge in (self.inflight_requests, self.engine_ready):
            gauge.remove_by_labels({"version": version})

    def forget_engine(self, version: str, engine: str) -> None:
        """An engine of a version is no more."""
        for gauge in (self.inflight_requests, self.engine_ready):
            gauge.remove_by_labels({"version": version, "engine": engine})

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)

    def render_for(self, accepted: str) -> tuple[bytes, str]:
        """The page, and its type, for whoever sends ``accepted`` as a header: OpenMetrics, which has exemplars, where that names it."""
        if OPENMETRICS in accepted:
            return generate_openmetrics(self._registry), OPENMETRICS_TYPE
        return self.render(), CONTENT_TYPE


def build_exemplar(parent: TraceParent | None) -> dict[str, str] | None:
    """What a measurement is tied to: a trace that is recorded, and no other, for nobody would find it."""
    if parent is None or not parent.sampled:
        return None
    return {"trace_id": parent.trace_id, "span_id": parent.span_id}
