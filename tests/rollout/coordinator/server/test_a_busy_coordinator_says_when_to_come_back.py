"""Bounds of the service: bodies, calls, calls of one pod, long polls; and what a client makes of a refusal."""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from coordinator_kit import FakeActor, FakeLearner, HttpServer

from rollout.coordinator.server.load import Busy, Load, LoadBounds
from rollout.errors import CoordinatorError
from rollout.protocol import client as client_module
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient

SECRET = "secret"


def call(server, body=b"", headers=None, path="/v1/actor/claim"):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    given = {"Authorization": f"Bearer {token_for(SECRET, 'actor')}", **(headers or {})}
    connection.request("POST", path, body=body, headers=given)
    answer = connection.getresponse()
    said = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return said


BOUNDS = LoadBounds(body_bytes=1000, bytes=1500, calls=2, waiting=2, body_seconds=60.0)


@pytest.fixture
def load():
    return Load(bounds=BOUNDS)


@pytest.fixture
def server(bench, load):
    made = HttpServer(bench, SECRET, load=load)
    yield made
    made.close()


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server):
    status, headers, said = call(server, b"x" * 1001)
    assert status == 413
    assert b"at most 1000 bytes" in said
    assert "Retry-After" not in headers


def test_a_body_without_a_length_is_refused(server):
    status, _, _ = call(server, iter([b"x"]))
    assert status == 411


def test_a_body_that_does_not_come_ends_the_call(bench):
    load = Load(bounds=replace(BOUNDS, body_seconds=0.2))
    server = HttpServer(bench, SECRET, load=load)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/v1/actor/claim")
    connection.putheader("Authorization", f"Bearer {token_for(SECRET, 'actor')}")
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"x")
    answer = connection.getresponse()
    assert answer.status == 408
    assert b"did not come" in answer.read()
    connection.close()
    server.close()
    assert (load.bytes, load.calls, load.waiting) == (0, 0, 0)


def test_calls_above_the_bound_are_told_when_to_come_back(server, load):
    with load.admit("", 0, waits=False), load.admit("", 0, waits=False):
        status, headers, said = call(server, b"{}", path="/v1/actor/heartbeat")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert b"2 calls are in flight" in said
    assert load.refused == 1
    assert call(server, b"{}", path="/v1/actor/heartbeat")[0] == 400


def test_bodies_in_hand_are_bounded_together(server, load):
    with load.admit("", 900, waits=False):
        assert call(server, b"x" * 700)[0] == 503
        assert call(server, b"x" * 500)[0] == 400


def test_who_waits_keeps_nobody_out(server, load):
    with load.admit("", 0, waits=True), load.admit("", 0, waits=True):
        assert call(server, b"{}")[0] == 503
        assert call(server, b"{}", path="/v1/actor/heartbeat")[0] == 400


def test_one_pod_cannot_take_every_place():
    load = Load(bounds=LoadBounds(calls_per_pod=1))
    with load.admit("actor-0", 0, waits=False):
        with pytest.raises(Busy, match="1 calls of actor-0") as refused:
            load.admit("actor-0", 0, waits=False).__enter__()
        assert (refused.value.status, refused.value.again_seconds) == (429, 1)
        with load.admit("actor-1", 0, waits=False):
            assert load.calls == 2
    assert not load.pods


def test_an_actor_works_through_a_busy_spell(bench):
    load = Load(bounds=LoadBounds(calls=1))
    server = HttpServer(bench, SECRET, load=load)
    client = CoordinatorClient.connect(server.url, token_for(SECRET, "actor"))
    actor = FakeActor(client)
    FakeLearner(CoordinatorClient.connect(server.url, token_for(SECRET, "learner")), bench.store)
    tasks = actor.claim().tasks
    place = load.admit("", 0, waits=False)
    place.__enter__()

    def end_once_somebody_was_refused():
        while not load.refused:
            time.sleep(0.01)
        place.__exit__(None, None, None)

    spell = threading.Thread(target=end_once_somebody_was_refused, daemon=True)
    spell.start()
    assert all(actor.submit(*map(actor.play, tasks)).accepted)
    spell.join()
    assert load.refused > 0
    server.close()


class Moody(BaseHTTPRequestHandler):
    """Refuses as it was told to, then answers."""

    refusals: list[tuple[int, str]]
    times: list[float]

    def do_POST(self):
        self.times.append(time.monotonic())
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.refusals:
            status, again = self.refusals.pop(0)
            body = msgspec.msgpack.encode(m.Refusal(error="CoordinatorError", message="busy"))
            self.send_response(status)
            if again:
                self.send_header("Retry-After", again)
        else:
            body = msgspec.msgpack.encode(m.Empty())
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def moody():
    handler = type("Handler", (Moody,), {"refusals": [], "times": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [429, 503])
def test_a_client_does_not_come_back_before_it_was_told_to(moody, status):
    handler, url = moody
    handler.refusals[:] = [(status, "1")]
    CoordinatorClient.connect(url, "t").call(routes.STOP, m.Stop(reason="x"))
    first, second = handler.times
    assert second - first >= 1.0


def test_a_client_gives_up_in_time_with_the_last_reason(moody):
    handler, url = moody
    handler.refusals[:] = [(503, "20")] * 9
    client = CoordinatorClient.connect(url, "t", patience_seconds=0.5)
    with pytest.raises(CoordinatorError, match="HTTP 503: busy"):
        client.call(routes.STOP, m.Stop(reason="x"))
    assert len(handler.times) == 1


def test_an_odd_time_is_not_believed(moody):
    handler, url = moody
    handler.refusals[:] = [(503, "soon"), (503, "-5")]
    CoordinatorClient.connect(url, "t", patience_seconds=60.0).call(routes.STOP, m.Stop(reason="x"))
    assert len(handler.times) == 3


GONE = "http://127.0.0.1:9"  # the port of discard, which nobody serves


@pytest.mark.timeout(30)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_who_was_told_to_go_does_not_wait_long_for_a_coordinator_that_is_gone(when, monkeypatch):
    monkeypatch.setattr(client_module, "GOING_SECONDS", 0.3)
    client = CoordinatorClient.connect(GONE, "t", patience_seconds=600.0)
    telling = threading.Timer(0.2, client.tell_to_go)
    if when == "before":
        client.tell_to_go()
    else:
        telling.start()
    with pytest.raises(CoordinatorError, match="no answer from the coordinator"):
        client.as_worker("actor-0").call(routes.STOP, m.Stop(reason="x"))
    telling.cancel()


def test_who_was_told_to_go_waits_for_a_coordinator_that_answers(moody, monkeypatch):
    monkeypatch.setattr(client_module, "GOING_SECONDS", 0.0)
    handler, url = moody
    handler.refusals[:] = [(503, "0.1")] * 2
    client = CoordinatorClient.connect(url, "t")
    client.tell_to_go()
    client.call(routes.STOP, m.Stop(reason="x"))
    assert len(handler.times) == 3
