"""A worker and a coordinator that write their calls otherwise say so, with both formats, before any body is read."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest
from coordinator_kit import FakeActor, HttpServer

from rollout.coordinator.calls.registry import HANDLERS
from rollout.coordinator.server.load import Busy, Load
from rollout.errors import CallFormatMismatch, CoordinatorError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.envelope import CALL_FORMAT, Envelope
from rollout.protocol.routes import LARGE_BYTES, ROUTES, SMALL_BYTES

SECRET = "secret"
OLD_CLAIM = msgspec.msgpack.encode(
    {"worker": "actor-0", "incarnation": 1, "tasks_max": 4, "held": [], "loaded": None}
)
"""As a worker of format 1 wrote it."""


@pytest.fixture
def server(bench):
    made = HttpServer(bench, SECRET)
    yield made
    made.close()


def send(server, method, path, role, body=b"", **headers):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    given = {
        "Authorization": f"Bearer {token_for(SECRET, role)}",
        "Content-Type": "application/msgpack",
        **headers,
    }
    connection.request(method, path, body=body, headers=given)
    answer = connection.getresponse()
    said = answer.status, answer.read()
    connection.close()
    return said


def refusal(said) -> tuple[int, str, str]:
    found = msgspec.msgpack.decode(said[1], type=m.Refusal)
    return said[0], found.error, found.message


@pytest.mark.parametrize("path", sorted(p for p, r in ROUTES.items() if r.role != "operator"))
def test_a_call_of_an_older_worker_is_refused_with_both_formats(server, path):
    status, error, message = refusal(send(server, "POST", path, ROUTES[path].role, OLD_CLAIM))
    assert (status, error) == (400, "CallFormatMismatch")
    assert f"have format 1, this coordinator's {CALL_FORMAT}" in message


def test_an_older_worker_that_asks_for_its_configuration_is_refused_too(server):
    status, error, message = refusal(send(server, "GET", routes.CONFIG, "actor"))
    assert (status, error) == (400, "CallFormatMismatch")
    assert "format 1" in message
    assert send(server, "GET", routes.CONFIG, "actor", **Envelope().headers())[0] == 200


@pytest.mark.parametrize("said", [str(CALL_FORMAT + 1), "-1", "two", "9" * 40, "\xb2"])
def test_a_format_that_is_newer_or_none_is_refused(server, said):
    headers = {**Envelope(worker="actor-0").headers(), "X-Rollout-Format": said}
    body = msgspec.msgpack.encode(m.Register())
    status, error, _ = refusal(send(server, "POST", routes.REGISTER.path, "actor", body, **headers))
    assert (status, error) == (400, "CallFormatMismatch")


def test_a_worker_without_a_name_is_refused(server):
    client = CoordinatorClient.connect(server.url, token_for(SECRET, "actor"))
    with pytest.raises(CoordinatorError, match="expected the worker's name"):
        client.call(routes.REGISTER, m.Register())


def test_the_operator_says_no_format_and_is_heard(server):
    headers = {"Content-Type": "application/json"}
    assert send(server, "POST", routes.STOP.path, "operator", b'{"reason": "x"}', **headers) == (
        200,
        b"{}",
    )


class Older(BaseHTTPRequestHandler):
    """A coordinator that says no format, or something in between that is no coordinator."""

    boot = "b"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b"\x80"
        self.send_response(400)
        if self.boot:
            self.send_header("X-Rollout-Boot", self.boot)
            self.send_header("X-Rollout-Position", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.mark.parametrize(
    ("boot", "error", "words"),
    [
        ("b", CallFormatMismatch, f"calls have format 1, this worker's {CALL_FORMAT}"),
        ("", CoordinatorError, "answered /v1/actor/register with HTTP 400"),
    ],
)
def test_a_worker_names_the_format_of_an_older_coordinator(boot, error, words):
    server = HTTPServer(("127.0.0.1", 0), type("It", (Older,), {"boot": boot}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = CoordinatorClient.connect(f"http://127.0.0.1:{server.server_port}", "t")
    with pytest.raises(error, match=words):
        client.as_worker("actor-0").call(routes.REGISTER, m.Register())
    client.close()
    server.shutdown()
    server.server_close()


def test_an_actor_cannot_say_how_the_learner_ended(bench):
    """Whose end it is was once a field of the call, beside the role of the token."""
    client = bench.start()
    actor = FakeActor(client)
    actor.call(routes.ACTOR_OUTCOME, m.Outcome(ok=True, message="x"))
    assert {(one.worker, one.outcome) for one in client.status().workers} == {
        ("actor-0", "succeeded")
    }


def test_every_route_has_one_handler():
    assert HANDLERS.keys() == ROUTES.keys()


def test_only_calls_that_carry_samples_may_be_large():
    assert {r.path for r in ROUTES.values() if r.body_bytes_max == LARGE_BYTES} == {
        routes.SUBMIT.path,
        routes.COMMIT.path,
    }
    with pytest.raises(Busy, match=f"at most {SMALL_BYTES} bytes"):
        Load().admit("", SMALL_BYTES + 1, SMALL_BYTES, waits=False).__enter__()
