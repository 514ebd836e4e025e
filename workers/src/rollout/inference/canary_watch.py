"""Watches a canary: what the servers of both sides count of themselves, until its time is over or it is plainly worse.

Pages of metrics are read from every pod that a side's name stands for; a pod counts from when it was first seen, and from
nothing again where its counts went back. A pod that does not answer is asked again at the next look.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from rollout_api.canary import find_worse
from rollout_api.serving import WatchOrder
from rollout_api.v1alpha1.inference.endpoint import CanaryFigures, CanarySide

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
PAGE_SECONDS_MAX = 5.0
LEFT = "499"
"""The client left: nobody failed it."""
SHARE = 0.95

Counts = dict[str, float]
Resolve = Callable[[str, int], Sequence[str]]


def resolve_pods(name: str, port: int) -> Sequence[str]:
    """The addresses that a name stands for; none where there is no such name now."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    hosts = {str(one[4][0]) for one in found}
    return [f"http://[{one}]:{port}" if ":" in one else f"http://{one}:{port}" for one in hosts]


@dataclass(slots=True)
class WatchedSide:
    """One side: its pods' counts as last seen, and what has been added to them since each was first seen."""

    name: str
    port: int
    client: httpx.Client
    resolve: Resolve
    _seen: dict[str, Counts] = field(default_factory=dict)
    total: Counts = field(default_factory=dict)

    def look(self) -> None:
        """Ask every pod once."""
        for address in self.resolve(self.name, self.port):
            try:
                page = self.client.get(f"{address}/metrics").raise_for_status().text
                counts = count_page(page)
            except (httpx.HTTPError, ValueError) as error:
                log.warning("no page address=%s error=%r", address, error)
                continue
            before = self._seen.get(address, counts)
            for key, value in counts.items():
                was = before.get(key, 0.0)
                self.total[key] = self.total.get(key, 0.0) + (value if value < was else value - was)
            self._seen[address] = counts


def count_page(page: str) -> Counts:
    """What of a page is compared: requests by outcome, requests sent on by outcome, first bytes by bucket. Raises ValueError."""
    counts: Counts = {}
    for family in text_string_to_metric_families(page):
        for one in family.samples:
            for key in _keys(one.name, one.labels):
                counts[key] = counts.get(key, 0.0) + one.value
    return counts


def _keys(name: str, labels: Mapping[str, str]) -> Iterable[str]:
    if name == "rollout_gateway_requests_total" and labels.get("code") != LEFT:
        yield "requests"
        if labels.get("code", "").startswith("5"):
            yield "failed"
    elif name == "rollout_gateway_canary_requests_total":
        yield f"canary {labels.get('outcome')}"
    elif name == "rollout_gateway_first_byte_seconds_bucket":
        yield f"first {labels.get('le')}"


def build_figures(candidate: Counts, serving: Counts) -> CanaryFigures:
    """Both sides. Whether the candidate was reached and answered is what those say who sent it requests."""
    sent = serving.get("canary answered", 0.0) + serving.get("canary fell_back", 0.0)
    failed = max(serving.get("canary fell_back", 0.0), candidate.get("failed", 0.0))
    return CanaryFigures(
        candidate=_side(max(sent, candidate.get("requests", 0.0)), failed, candidate),
        serving=_side(serving.get("requests", 0.0), serving.get("failed", 0.0), serving),
    )


def _side(requests: float, failed: float, counts: Counts) -> CanarySide:
    return CanarySide(
        requests=int(requests),
        failed_share=min(1.0, failed / requests) if requests else None,
        first_byte_p95=find_quantile(counts, SHARE),
    )


def find_quantile(counts: Counts, share: float) -> float | None:
    """Seconds below which ``share`` of the first bytes came, between the bounds of a bucket in proportion."""
    bounds = {
        float(key.removeprefix("first ")): n for key, n in counts.items() if key[:6] == "first "
    }
    whole = bounds.get(float("inf"), 0.0)
    if not whole:
        return None
    low, below = 0.0, 0.0
    for bound in sorted(bounds):
        if bounds[bound] >= share * whole:
            if bound == float("inf"):
                return low
            part = (share * whole - below) / max(bounds[bound] - below, 1e-9)
            return low + (bound - low) * part
        low, below = bound, bounds[bound]
    return low


def watch_canary(
    order: WatchOrder,
    resolve: Resolve = resolve_pods,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> CanaryFigures:
    """The figures when its time is over, or when they were worse than the guard allows."""
    until = clock() + order.seconds
    with httpx.Client(timeout=PAGE_SECONDS_MAX, follow_redirects=False) as client:
        ours = WatchedSide(order.candidate, order.port, client, resolve)
        theirs = WatchedSide(order.serving, order.port, client, resolve)
        while True:
            ours.look()
            theirs.look()
            figures = build_figures(ours.total, theirs.total)
            if (left := until - clock()) <= 0 or find_worse(figures, order.guard):
                return figures
            sleep(min(LOOK_SECONDS, left))
