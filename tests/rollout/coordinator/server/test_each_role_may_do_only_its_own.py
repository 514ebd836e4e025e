import http.client
import threading

import msgspec
import pytest
from coordinator_kit import FakeActor, FakeLearner, HttpServer, run_to_end

from rollout.errors import CoordinatorError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.envelope import Envelope
from rollout.protocol.routes import ROLES, ROUTES

SECRET = "a secret of this run"


@pytest.fixture
def server(bench):
    made = HttpServer(bench, SECRET)
    yield made
    made.close()


def call(server, method, path, token=None, body=b""):
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"Content-Type": "application/msgpack", **Envelope(worker="actor-0").headers()}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_an_endpoint_answers_its_own_role_only(server, path):
    for role in ROLES:
        status, _ = call(server, "POST", path, token_for(SECRET, role), b"not msgpack")
        assert status == (400 if role == ROUTES[path].role else 403), (role, path)
    for token in (None, "", "guess", token_for("another secret", "actor")):
        assert call(server, "POST", path, token)[0] == 401


def test_an_actor_cannot_commit_a_step(server):
    client = CoordinatorClient.connect(server.url, token_for(SECRET, "actor"))
    with pytest.raises(CoordinatorError, match="role actor may not call POST /v1/learner/start"):
        client.as_worker("learner").call(routes.START, m.LearnerStart())


def test_status_needs_a_token_and_health_and_metrics_do_not(server):
    assert call(server, "GET", "/v1/status")[0] == 401
    assert call(server, "GET", "/v1/status", token_for(SECRET, "operator"))[0] == 200
    assert call(server, "GET", "/healthz") == (200, b"ok\n")
    status, page = call(server, "GET", "/metrics")
    assert status == 200
    assert b"rollout_step_number 0.0" in page


def test_unknown_paths_and_broken_bodies_are_refused(server):
    token = token_for(SECRET, "actor")
    assert call(server, "POST", "/v1/actor/unknown", token)[0] == 404
    body = msgspec.msgpack.encode({"tasks_max": "7"})
    status, answer = call(server, "POST", "/v1/actor/claim", token, body)
    refusal = msgspec.msgpack.decode(answer, type=m.Refusal)
    assert (status, refusal.error) == (400, "CoordinatorError")
    assert "tasks_max" in refusal.message


def test_a_whole_run_works_over_real_http(server, bench):
    clients = {
        role: CoordinatorClient.connect(server.url, token_for(SECRET, role)) for role in ROLES
    }
    learner = FakeLearner(clients["learner"], bench.store)
    assert run_to_end(FakeActor(clients["actor"]), learner).stop == "Finished"
    assert clients["operator"].status().step == 3
    assert clients["operator"].status().metrics["reward"] == 0.5
    for client in clients.values():
        client.close()


def test_a_waiting_claim_and_a_waiting_batch_are_woken_by_what_they_wait_for(server, bench):
    clients = {
        role: CoordinatorClient.connect(server.url, token_for(SECRET, role)) for role in ROLES
    }
    actor = FakeActor(clients["actor"])
    worked = []
    claiming = threading.Thread(target=lambda: worked.append(actor.work(wait=30.0)))
    claiming.start()
    learner = FakeLearner(clients["learner"], bench.store)
    batch = learner.ask(wait=30.0)
    claiming.join(60.0)
    assert worked == [2]
    assert len(batch.groups) == 2
