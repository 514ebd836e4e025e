"""The pod that measures an endpoint's candidate: as its order says, whole or not at all, and its word fits a status."""

import json

import pytest
from chat_server import ChatServer

from rollout.entrypoints.errands.measure import ANSWER_CHARACTERS_MAX, read_order, render
from rollout.errors import InfrastructureError, SpecError
from rollout.evaluations.remote.candidate import measure_candidate
from rollout.rewards.chat_endpoint import Endpoint
from rollout_api.serving import MEASURE_VARIABLE, MeasureOrder
from rollout_api.v1alpha1.inference.endpoint import Measured

QUESTIONS = [
    {"question": f"Which is {n}?", "choices": list("1234"), "answer": n % 4, "subject": "our_own"}
    for n in range(8)
]
GATE = {"metric": "accuracy", "lowerBound": "0.5", "action": "StopPromotion"}


@pytest.fixture
def server():
    with ChatServer() as one:
        one.say = lambda asked: " " + "ABCD"[number(asked) % 4]
        yield one


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in QUESTIONS))
    parameters = [{"name": "uri", "value": str(path)}]
    return {"builtin": {"name": "mmlu-generative", "parameters": parameters}}


def number(asked):
    return int(asked.split("Which is ")[1].split("?")[0])


def order(server, *evaluations):
    return MeasureOrder.model_validate(
        {"url": server.url, "model": "m", "evaluations": evaluations}
    )


def test_each_evaluation_is_asked_as_it_says_and_has_its_gates_metric(server, suite, tmp_path):
    server.say = lambda asked: " " + ("ABCD"[number(asked) % 4] if number(asked) < 6 else "none")
    asked = order(
        server,
        {"name": "all", "suite": suite, "gate": {**GATE, "metric": "exact"}},
        {"name": "few", "suite": suite, "maxPrompts": 2, "maxNewTokens": 7},
    )
    first, second = measure_candidate(asked, "sk-1", tmp_path / "work")
    assert (first.name, first.metric, first.value, first.num_prompts) == ("all", "exact", 0.75, 8)
    assert first.low is not None and first.low < 0.75
    assert (second.name, second.metric, second.value, second.num_prompts) == (
        "few",
        "accuracy",
        1.0,
        2,
    )
    assert server.asked[-1]["max_tokens"] == 7
    assert {one["Authorization"] for one in server.headers} == {"Bearer sk-1"}


def test_a_part_of_the_prompts_decides_nothing(server, suite, tmp_path, monkeypatch):
    monkeypatch.setattr("rollout.evaluations.remote.candidate.TRIES_MAX", 1)
    server.say = lambda asked: 503 if number(asked) == 3 else " A"
    with pytest.raises(InfrastructureError, match="1 of 8 prompts were not answered"):
        measure_candidate(order(server, {"name": "all", "suite": suite}), "", tmp_path / "work")


def test_a_key_goes_without_tls_only_where_whoever_calls_says_so():
    with pytest.raises(SpecError, match="https"):
        Endpoint(url="http://chat-candidate.ns.svc/v1", model="m", key="sk")
    Endpoint(url="http://chat-candidate.ns.svc/v1", model="m", key="sk", is_trusted_network=True)


def test_an_order_that_is_none_is_named():
    with pytest.raises(SpecError, match=MEASURE_VARIABLE):
        read_order({MEASURE_VARIABLE: '{"url": 1}'})
    with pytest.raises(SpecError, match=MEASURE_VARIABLE):
        read_order({})


def test_the_word_of_as_many_evaluations_as_there_may_be_fits_a_termination_message():
    one = Measured(
        name="n" * 63, metric="accuracy", value=1 / 3, low=1 / 7, high=2 / 3, num_prompts=10**6
    )
    assert len(render([one] * 16)) < ANSWER_CHARACTERS_MAX
