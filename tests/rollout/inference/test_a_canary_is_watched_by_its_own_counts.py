"""Both sides of a canary by their pages of metrics: what was counted before is left out, pods come and go, and what is plainly worse ends it."""

import random

import httpx
import pytest

from rollout.entrypoints.errands.watch import read_watch_order
from rollout.errors import SpecError
from rollout.inference import canary_watch
from rollout.inference.canary_watch import (
    WatchedSide,
    build_figures,
    count_page,
    find_quantile,
    watch_canary,
)
from rollout.inference.gateway.metrics import GatewayMetrics
from rollout_api.canary import find_worse
from rollout_api.serving import WATCH_VARIABLE, WatchOrder
from rollout_api.v1alpha1.inference.endpoint import CanaryFigures, CanaryGuard, CanarySide

PATH = "/v1/chat/completions"
GUARD = CanaryGuard()


class Pod:
    """A gateway's counts, as its page has them."""

    def __init__(self):
        self.metrics = GatewayMetrics()

    def serve(self, count, code="200", seconds=0.05):
        for _ in range(count):
            self.metrics.requests.labels("m", PATH, code).inc()
            self.metrics.first_byte.labels("m", "true").observe(seconds)

    def send_on(self, count, outcome="answered"):
        self.metrics.canary.labels(outcome).inc(count)


class Cluster:
    """Pods by address, and the names that stand for them."""

    def __init__(self, monkeypatch):
        self.pods, self.names = {}, {"c": [], "s": []}
        transport = httpx.MockTransport(self._answer)
        real = httpx.Client
        monkeypatch.setattr(canary_watch.httpx, "Client", lambda **_: real(transport=transport))
        self.client = real(transport=transport)

    def _answer(self, request):
        pod = self.pods.get(f"http://{request.url.host}:8000")
        if pod is None:
            raise httpx.ConnectError("nobody")
        return httpx.Response(200, content=pod.metrics.render())

    def add(self, name, host):
        self.pods[f"http://{host}:8000"] = pod = Pod()
        self.names[name].append(f"http://{host}:8000")
        return pod

    def resolve(self, name, port):
        assert port == 8000
        return list(self.names[name])


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


def watch(cluster, rounds, seconds=20):
    """Watch for ``seconds``; before each look one of ``rounds`` happens."""
    now, left = [0.0], iter(rounds)

    def sleep(duration):
        now[0] += duration
        next(left, lambda: None)()

    order = WatchOrder(candidate="c", serving="s", port=8000, seconds=seconds, guard=GUARD)
    figures = watch_canary(order, cluster.resolve, clock=lambda: now[0], sleep=sleep)
    return figures, now[0]


def test_only_what_is_counted_while_it_is_watched_is_compared(cluster):
    candidate, serving = cluster.add("c", "c1"), cluster.add("s", "s1")
    candidate.serve(100, "500", 9.0)  # while it was measured

    def turn():
        candidate.serve(10)
        serving.serve(90)
        serving.send_on(10)

    figures, seconds = watch(cluster, [turn] * 10)
    assert seconds == 20
    assert figures.candidate.requests == 100
    assert figures.candidate.failed_share == 0
    assert figures.serving.requests == 900
    assert figures.candidate.first_byte_p95 == figures.serving.first_byte_p95
    assert find_worse(figures, GUARD) == ""


def test_one_that_fails_ends_it_as_soon_as_it_has_been_asked_enough(cluster):
    cluster.add("c", "c1")
    serving = cluster.add("s", "s1")

    def turn():
        serving.serve(500)
        serving.send_on(45)
        serving.send_on(5, "fell_back")

    figures, seconds = watch(cluster, [turn] * 100, seconds=1000)
    assert seconds == 8
    assert figures.candidate.requests == 200
    assert "it failed 10.0% of 200 requests" in find_worse(figures, GUARD)


def test_a_slow_one_ends_it(cluster):
    candidate, serving = cluster.add("c", "c1"), cluster.add("s", "s1")

    def turn():
        candidate.serve(100, seconds=0.4)
        serving.serve(100, seconds=0.05)
        serving.send_on(100)

    figures, seconds = watch(cluster, [turn] * 100, seconds=1000)
    assert seconds == 4
    assert "maxFirstByteRatio 1.5" in find_worse(figures, GUARD)


def test_clients_that_leave_are_nobodys_failure(cluster):
    cluster.add("c", "c1")
    serving = cluster.add("s", "s1")
    figures, _ = watch(cluster, [lambda: serving.serve(50, "499")] * 3)
    assert figures.serving.requests == 0


def test_pods_that_come_go_and_start_again_count_what_they_have_done_since(cluster):
    candidate, serving = cluster.add("c", "c1"), cluster.add("s", "s1")

    def restart():
        cluster.pods["http://s1:8000"] = again = Pod()
        again.serve(7)

    def another():
        cluster.add("s", "s2").serve(1000)  # nobody knows since when

    def goes():
        cluster.names["s"].remove("http://s1:8000")

    rounds = [lambda: serving.serve(40), restart, another, goes, lambda: candidate.serve(3)]
    figures, _ = watch(cluster, rounds)
    assert figures.serving.requests == 47
    assert figures.candidate.requests == 3


def test_a_pod_that_does_not_answer_is_asked_again(cluster):
    candidate = cluster.add("c", "c1")
    cluster.add("s", "s1")
    lost = {}

    def away():
        candidate.serve(5)
        lost.update(cluster.pods)
        cluster.pods.clear()

    figures, _ = watch(cluster, [away, lambda: cluster.pods.update(lost)])
    assert figures.candidate.requests == 5


def test_a_name_that_stands_for_nobody_yet_is_no_end(cluster):
    figures, seconds = watch(cluster, [])
    assert seconds == 20
    assert figures == CanaryFigures()


@pytest.mark.parametrize("page", ["{", "# TYPE a b c", "a{b} 1", 'a{b="1" 2'])
def test_a_page_that_is_none_is_told_and_left_out(cluster, page, monkeypatch):
    cluster.add("c", "c1")
    side = WatchedSide("c", 8000, cluster.client, cluster.resolve)
    monkeypatch.setattr(GatewayMetrics, "render", lambda _: page.encode())
    side.look()
    assert side.total == {}


def test_a_quantile_lies_within_its_bucket():
    draw = random.Random(7)
    pod = Pod()
    values = sorted(draw.lognormvariate(-2, 1) for _ in range(4000))
    for value in values:
        pod.serve(1, seconds=value)
    found = find_quantile(count_page(pod.metrics.render().decode()), 0.95)
    exact = values[int(0.95 * len(values))]
    assert 0.5 <= found <= 0.75
    assert 0.5 <= exact <= 0.75


def test_a_side_without_requests_has_no_quantile_and_no_failures():
    figures = build_figures({}, {})
    assert figures.candidate == CanarySide()


@pytest.mark.parametrize(
    ("candidate", "serving", "worse"),
    [
        ({"requests": 199, "failed_share": 1.0}, {"requests": 900}, False),
        ({"requests": 200, "failed_share": 0.011}, {"requests": 900}, True),
        ({"requests": 200, "failed_share": 0.5}, {"requests": 900, "failed_share": 0.495}, False),
        (
            {"requests": 200, "first_byte_p95": 9.0},
            {"requests": 19, "first_byte_p95": 0.1},
            False,
        ),
        ({"requests": 200, "first_byte_p95": 0.16}, {"requests": 99, "first_byte_p95": 0.1}, True),
        ({"requests": 200}, {"requests": 99, "first_byte_p95": 0.1}, False),
    ],
)
def test_worse_is_by_more_than_the_guard_allows_and_after_enough_requests(
    candidate, serving, worse
):
    figures = CanaryFigures(candidate=CanarySide(**candidate), serving=CanarySide(**serving))
    assert bool(find_worse(figures, GUARD)) is worse


def test_an_order_that_is_none_is_named():
    with pytest.raises(SpecError, match=WATCH_VARIABLE):
        read_watch_order({WATCH_VARIABLE: "{}"})
