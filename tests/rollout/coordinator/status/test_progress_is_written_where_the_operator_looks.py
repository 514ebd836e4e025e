"""``status.progress``: one struct of the run's own object, by server-side apply, at a bounded rate."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, HttpServer, run_to_end, wait_for_outcome
from plans import changed

from rollout.coordinator.rules.autoscaling import ActorBounds, ScaleState
from rollout.coordinator.status.kubernetes import (
    ApiWriter,
    Poster,
    Unwritten,
    build_duties,
    build_patch,
    spread_of,
)
from rollout.coordinator.status.progress import describe_progress, stamp
from rollout.coordinator.status.prometheus import render_metrics
from rollout.errors import CoordinatorError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout_api.v1alpha1.run_status import Progress
from rollout_api.worker import ProgressWriting, RunIdentity

RUN = RunIdentity(name="arithmetic", namespace="team", uid="uid-1")


def call(client, route, ask):
    return client.as_worker(f"learner-{ask.rank}").call(route, ask)


class Written:
    """A writer that remembers, and fails as often as it is told to."""

    def __init__(self) -> None:
        self.seen: list[Progress] = []
        self.failures: list[Unwritten] = []

    async def write(self, progress: Progress) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.seen.append(progress)


class Clocked:
    """A poster of a bench's run, looked after by hand: the run's clock is ours."""

    def __init__(self, bench) -> None:
        self.clock, self.writer = bench.hold_clock(), Written()
        self.bench = bench
        self.poster = Poster(writer=self.writer, every_seconds=10.0)

    def look(self, after: float = 0.0) -> float:
        self.clock.now += after
        return asyncio.run(self.poster.look(self.bench.coordinator.run))

    @property
    def steps(self) -> list[int]:
        return [one.step for one in self.writer.seen]


@pytest.fixture
def clocked(bench):
    client = bench.start()
    return client, Clocked(bench)


def test_it_says_how_far_the_run_is_and_how_it_ended(bench):
    client = bench.start()
    learner = FakeLearner(client, bench.store)
    run_to_end(FakeActor(client), learner)
    call(client, routes.JOIN, m.Join(group=2, rank=0, address="h:1", nonce="n", wait_seconds=0.0))
    learner.finish()
    wait_for_outcome(client)
    progress = stamp(describe_progress(bench.coordinator.run))
    assert (progress.step, progress.max_steps, progress.attempt) == (3, 3, 1)
    assert progress.outcome.kind == "Succeeded"
    assert progress.group.incarnation == 2
    assert progress.dispositions.consumed == 12
    assert {one.type: one.status for one in progress.conditions}["WeightsVerified"] == "True"
    assert progress.update_time.endswith("Z")
    assert Progress.model_validate_json(progress.model_dump_json()) == progress


def test_it_says_how_many_actors_autoscale_asks_for(bench):
    bench.start()
    assert describe_progress(bench.coordinator.run).actors_wanted is None
    bench.start(changed(PLAN, actors=ActorBounds(low=2, high=8, start=3)))
    run = bench.coordinator.run
    assert describe_progress(run).actors_wanted == 3
    run.pace = ScaleState(wanted=5)
    assert describe_progress(run).actors_wanted == 5


def test_an_autoscaler_of_the_cluster_can_read_how_many_actors_are_needed(bench):
    client = bench.start()
    assert b"rollout_actors_needed" not in render_metrics(bench.coordinator)[0]
    run_to_end(FakeActor(client), FakeLearner(client, bench.store))
    page = render_metrics(bench.coordinator)[0].decode()
    [needed] = [line for line in page.splitlines() if line.startswith("rollout_actors_needed ")]
    assert float(needed.split()[1]) >= 0
    assert "rollout_actors_wanted" not in page
    bench.start(changed(PLAN, actors=ActorBounds(low=2, high=8, start=3)))
    assert b"rollout_actors_wanted 3.0" in render_metrics(bench.coordinator)[0]


def test_a_durable_anchor_is_told_at_once(bench):
    client = bench.start()
    run = bench.coordinator.run
    told = {one.type: one for one in describe_progress(run).conditions}["Snapshotted"]
    assert (told.status, told.reason) == ("False", "NoSnapshotYet")
    learner = FakeLearner(client, bench.store)
    run_to_end(FakeActor(client), learner)
    learner.finish()
    progress = describe_progress(run)
    told = {one.type: one for one in progress.conditions}["Snapshotted"]
    assert (told.status, told.reason, told.message) == (
        "True",
        "SnapshotTaken",
        "step 3 is durable",
    )
    assert progress.last_snapshot.step == 3


@pytest.mark.parametrize("place", ["", "s3://runs/team/ns/uid-1"])
def test_servers_are_told_where_an_anchors_weights_lie_where_they_can_have_them(bench, place):
    client = bench.start(changed(PLAN, weights_place=place))
    learner = FakeLearner(client, bench.store)
    run_to_end(FakeActor(client), learner)
    learner.finish()
    saved = describe_progress(bench.coordinator.run).last_snapshot
    version = bench.coordinator.run.state.anchors[-1].version
    name = version.object.removeprefix("blake3:")
    uri = f"{place}/blake3/{name[:2]}/{name}"
    assert saved.weights_uri == (uri if place else None)
    assert saved.weights_digest == (version.digest if place else None)


def test_nothing_is_written_when_nothing_has_changed(clocked):
    _, poster = clocked
    poster.look()
    for _ in range(5):
        poster.look(after=11.0)
    assert poster.steps == [0]


def test_steps_are_written_at_the_interval_only(clocked, bench):
    client, poster = clocked
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    poster.look()
    actor.work()
    learner.commit(learner.ask())
    assert 0 < poster.look(after=2.0) <= 8.0
    assert poster.steps == [0]
    poster.look(after=8.0)
    assert poster.steps == [0, 1]


def test_the_interval_is_the_operators(clocked, bench):
    client, poster = clocked
    client.call(routes.SETTINGS, m.Settings(generation=1, live={"progressSeconds": 300}))
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    poster.look()
    actor.work()
    learner.commit(learner.ask())
    poster.look(after=299.0)
    assert poster.steps == [0]
    poster.look(after=1.0)
    assert poster.steps == [0, 1]


def test_runs_that_began_together_do_not_write_together():
    spreads = {spread_of(f"uid-{number}") for number in range(200)}
    assert 1.0 <= min(spreads) < max(spreads) <= 1.25
    assert len(spreads) > 50


def test_what_must_be_acted_on_is_written_at_once_but_not_twice_a_second(clocked):
    client, poster = clocked
    poster.look()
    ask = m.Join(group=1, rank=0, address="h:1", nonce="n")
    call(client, routes.JOIN, ask)
    assert poster.look(after=0.2) == pytest.approx(0.8)
    poster.look(after=0.8)
    assert poster.writer.seen[-1].group.stage == "Running"
    left = m.Left(group=1, rank=0, nonce="n", ok=False, message="exit code 1")
    call(client, routes.LEFT, left)
    poster.look(after=1.0)
    assert poster.writer.seen[-1].group.stage == "Failed"
    assert len(poster.writer.seen) == 3


def test_a_refusal_is_tried_again_later_and_not_before_it_was_told(clocked):
    _, poster = clocked
    poster.writer.failures = [Unwritten("HTTP 429", 30.0), Unwritten("HTTP 500"), Unwritten("x")]
    poster.look()
    poster.look(after=29.0)
    assert len(poster.writer.failures) == 2
    poster.look(after=1.0)
    assert len(poster.writer.failures) == 1
    poster.look(after=4.0)
    assert len(poster.writer.failures) == 1
    poster.look(after=60.0)
    poster.look(after=60.0)
    assert poster.steps == [0]


class ApiServer(BaseHTTPRequestHandler):
    """Takes what server-side apply of one subresource takes."""

    seen: list[dict]
    answers: list[tuple[int, dict]]
    uid: list[str]

    def do_PATCH(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(
            {"path": self.path, "headers": dict(self.headers), "body": json.loads(body)}
        )
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        answer = json.dumps({"metadata": {"uid": self.uid[0], "resourceVersion": "41"}}).encode()
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def api(tmp_path):
    handler = type("Handler", (ApiServer,), {"seen": [], "answers": [], "uid": ["uid-1"]})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    (tmp_path / "api-token").write_text("a token for the API server")
    wanted = ProgressWriting(
        api_url=f"http://127.0.0.1:{server.server_address[1]}",
        token_file=str(tmp_path / "api-token"),
    )
    yield handler, wanted
    server.shutdown()
    server.server_close()


def test_it_applies_one_struct_of_its_own_object(api):
    handler, wanted = api
    asyncio.run(ApiWriter(wanted, RUN).write(Progress(step=7)))
    tried, seen = handler.seen
    address = urlsplit(seen["path"])
    assert (
        address.path == "/apis/rollout.dev/v1alpha1/namespaces/team/rolloutruns/arithmetic/status"
    )
    assert parse_qs(address.query) == {"fieldManager": ["rollout-coordinator"], "force": ["true"]}
    assert seen["headers"]["Content-Type"] == "application/apply-patch+yaml"
    assert seen["headers"]["Authorization"] == "Bearer a token for the API server"
    assert tried["path"] == seen["path"] + "&dryRun=All"
    assert "resourceVersion" not in tried["body"]["metadata"]
    assert seen["body"]["metadata"]["resourceVersion"] == "41"
    assert list(seen["body"]["status"]) == ["progress"]
    assert seen["body"]["status"]["progress"]["step"] == 7
    assert seen["body"] == json.loads(build_patch(RUN, Progress(step=7), "41"))


def test_a_namesake_is_not_written(api):
    handler, wanted = api
    handler.uid[:] = ["uid-2"]
    with pytest.raises(Unwritten, match="another run of this name"):
        asyncio.run(ApiWriter(wanted, RUN).write(Progress(step=7)))
    assert [urlsplit(one["path"]).query.endswith("dryRun=All") for one in handler.seen] == [True]


def test_its_token_is_read_each_time(api, tmp_path):
    handler, wanted = api
    writer = ApiWriter(wanted, RUN)
    asyncio.run(writer.write(Progress()))
    (tmp_path / "api-token").write_text("the next one")
    asyncio.run(writer.write(Progress()))
    assert handler.seen[3]["headers"]["Authorization"] == "Bearer the next one"
    (tmp_path / "api-token").unlink()
    with pytest.raises(Unwritten, match="cannot read the token file"):
        asyncio.run(writer.write(Progress()))


@pytest.mark.parametrize(
    ("status", "headers", "again"), [(409, {}, None), (429, {"Retry-After": "7"}, 7.0)]
)
def test_a_refusal_is_told_without_the_token(api, status, headers, again):
    handler, wanted = api
    handler.answers[:] = [(status, headers)]
    with pytest.raises(Unwritten, match=f"HTTP {status}") as refused:
        asyncio.run(ApiWriter(wanted, RUN).write(Progress()))
    assert refused.value.again_seconds == again
    assert "a token" not in str(refused.value)


def test_nobody_is_told_where_nobody_asked():
    assert build_duties(None, RUN) == ()
    plain = ProgressWriting(api_url="http://10.0.0.1:80", token_file="t")
    with pytest.raises(CoordinatorError, match="in the clear"):
        build_duties(plain, RUN)


def test_a_running_coordinator_writes_by_itself(bench, api):
    handler, wanted = api
    server = HttpServer(bench, "secret")
    (duty,) = build_duties(wanted, RUN)

    async def begin() -> asyncio.Task:
        return asyncio.create_task(duty(server.coordinator.run))

    task = server._do(begin())
    deadline = time.monotonic() + 60.0
    while not handler.seen and time.monotonic() < deadline:
        time.sleep(0.02)
    assert handler.seen[0]["body"]["status"]["progress"]["step"] == 0
    server._loop.call_soon_threadsafe(task.cancel)
    server.close()


def test_the_operator_may_ask_too(bench):
    import urllib.request

    server = HttpServer(bench, "secret")
    request = urllib.request.Request(
        f"{server.url}/v1/progress",
        headers={"Authorization": f"Bearer {token_for('secret', 'operator')}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = Progress.model_validate_json(answer.read())
    assert (found.step, found.bottleneck) == (0, "Balanced")
    server.close()
