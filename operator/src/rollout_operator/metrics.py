"""Numbers about the operator, for Prometheus. Labels are bounded; deleted runs leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60)
SNAPSHOT_SECONDS = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600)
SNAPSHOT_BYTES = tuple(1024**2 * 4**power for power in range(10))
"""From a mebibyte to 256 gibibytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Every series of the operator."""

    registry: CollectorRegistry
    reconciles: Counter
    duration: Histogram
    queue_latency: Histogram
    requests: Counter
    snapshot_seconds: Histogram
    snapshot_bytes: Histogram
    _series: dict[tuple[str, int], Counter] = field(default_factory=dict)
    """Of ``requests``, by verb and code: asking the counter for one of its series costs more than to count."""

    def count_request(self, verb: str, code: int) -> None:
        """One answer of the API server; 0 is none."""
        series = self._series.get((verb, code))
        if series is None:
            series = self._series[verb, code] = self.requests.labels(verb=verb, code=str(code))
        series.inc()

    def count_snapshot(self, seconds: float, num_bytes: int) -> None:
        """One snapshot that has become durable."""
        self.snapshot_seconds.observe(seconds)
        self.snapshot_bytes.observe(num_bytes)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)


def build_metrics() -> Metrics:
    """Series that are counted."""
    registry = CollectorRegistry()
    return Metrics(
        registry=registry,
        reconciles=Counter(
            "rollout_reconcile", "Reconciles by result.", ["result"], registry=registry
        ),
        duration=Histogram(
            "rollout_reconcile_duration_seconds",
            "Time of one reconcile.",
            buckets=BUCKETS,
            registry=registry,
        ),
        queue_latency=Histogram(
            "rollout_queue_latency_seconds",
            "Time that a key waited.",
            buckets=BUCKETS,
            registry=registry,
        ),
        requests=Counter(
            "rollout_api_requests",
            "Requests to the API server by verb and code; code 0 is no answer.",
            ["verb", "code"],
            registry=registry,
        ),
        snapshot_seconds=Histogram(
            "rollout_snapshot_duration_seconds",
            "From the order to take a snapshot until it was durable.",
            buckets=SNAPSHOT_SECONDS,
            registry=registry,
        ),
        snapshot_bytes=Histogram(
            "rollout_snapshot_bytes",
            "Size of snapshots that became durable.",
            buckets=SNAPSHOT_BYTES,
            registry=registry,
        ),
    )


def watch_gauges(
    metrics: Metrics,
    *,
    queue_depth: Callable[[], int],
    leading: Callable[[], bool],
    ages: Callable[[], Mapping[str, float]],
    reasons: Callable[[], Mapping[str, int]],
) -> None:
    """Series that are looked up when somebody asks."""
    depth = Gauge("rollout_queue_depth", "Keys that wait.", registry=metrics.registry)
    depth.set_function(queue_depth)
    leader = Gauge("rollout_leader", "1 while this replica writes.", registry=metrics.registry)
    leader.set_function(lambda: float(leading()))
    metrics.registry.register(_Looked(ages, reasons))  # pyrefly: ignore[bad-argument-type] - a collector by its method collect


@dataclass(frozen=True, slots=True)
class _Looked:
    """Watch ages and runs by reason, counted when scraped."""

    ages: Callable[[], Mapping[str, float]]
    reasons: Callable[[], Mapping[str, int]]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family each."""
        ages = GaugeMetricFamily(
            "rollout_watch_age_seconds", "Since a watch was last heard.", labels=["resource"]
        )
        for resource, age in self.ages().items():
            ages.add_metric([resource], age)
        yield ages
        runs = GaugeMetricFamily("rollout_runs", "Runs by the reason of Ready.", labels=["reason"])
        for reason, count in self.reasons().items():
            runs.add_metric([reason], count)
        yield runs
