"""What a gateway counts of itself. Labels are names of the table and routes of ours, never a client's text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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


class GatewayMetrics:
    """The series of one gateway process; ``render`` is its page."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "rollout_gateway_requests",
            "Requests that have ended; code 499: the client left.",
            ("version", "route", "code"),
            registry=registry,
        )
        self.rejected = Counter(
            "rollout_gateway_rejected", "Requests refused by us.", ("reason",), registry=registry
        )
        self.seconds = Histogram(
            "rollout_gateway_request_seconds",
            "From the request's head to the last byte of its answer.",
            ("version",),
            buckets=LATENCY,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "rollout_gateway_queue_seconds",
            "Time spent waiting for an engine.",
            ("version",),
            buckets=FIRST_BYTE,
            registry=registry,
        )
        self.first_byte = Histogram(
            "rollout_gateway_first_byte_seconds",
            "From the request's head to the first byte of its answer.",
            ("version", "streaming"),
            buckets=FIRST_BYTE,
            registry=registry,
        )
        self.inter_chunk = Histogram(
            "rollout_gateway_inter_chunk_seconds",
            "Mean time between two chunks of one stream.",
            ("version",),
            buckets=CHUNK,
            registry=registry,
        )
        self.overhead = Histogram(
            "rollout_gateway_overhead_seconds",
            "Our own time before the engine got the request, without the queue.",
            buckets=OVERHEAD,
            registry=registry,
        )
        self.tokens = Counter(
            "rollout_gateway_tokens",
            "Tokens of ended requests, as engines counted them.",
            ("version", "kind"),
            registry=registry,
        )
        self.retries = Counter(
            "rollout_gateway_retries", "Requests sent to a second engine.", registry=registry
        )
        self.queued_requests = Gauge(
            "rollout_gateway_queued_requests", "Waiting now.", ("version",), registry=registry
        )
        self.queued_tokens = Gauge(
            "rollout_gateway_queued_tokens",
            "Tokens of what waits.",
            ("version",),
            registry=registry,
        )
        self.inflight_requests = Gauge(
            "rollout_gateway_inflight_requests",
            "With an engine now.",
            ("version", "engine"),
            registry=registry,
        )
        self.engine_ready = Gauge(
            "rollout_gateway_engine_ready",
            "1 where an engine answers its health check.",
            ("version", "engine"),
            registry=registry,
        )
        self.saturation = Gauge(
            "rollout_endpoint_saturation_ratio",
            "Requests queued and with engines, over what engines take at a time.",
            ("version",),
            registry=registry,
        )
        self.log_dropped = Counter(
            "rollout_gateway_log_dropped",
            "Lines of the request log that were not written.",
            registry=registry,
        )

    def forget_version(self, version: str) -> None:
        """A version is served no more: its gauges would stand still for ever."""
        for gauge in (self.queued_requests, self.queued_tokens, self.saturation):
            gauge.remove_by_labels({"version": version})
        for gauge in (self.inflight_requests, self.engine_ready):
            gauge.remove_by_labels({"version": version})

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)
