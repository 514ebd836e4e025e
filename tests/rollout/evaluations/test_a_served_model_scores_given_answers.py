"""``rollout eval --url`` of suites whose answers are given: a server that tells how likely a prompt is, in either form, or not."""

from __future__ import annotations

import json
import math
import re

import pytest
from blake3 import blake3
from chat_server import ChatServer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import DataError, SpecError
from rollout.evaluations.remote.likelihood import FORMS, find_form, score_choices
from rollout.rewards.chat_endpoint import Endpoint, TryAgain, open_client

QUESTIONS = [
    {"question": f"Which is {n}?", "choices": list("wxyz"), "answer": n % 4, "subject": "our_own"}
    for n in range(9)
]


def split(text, joined=()):
    """Tokens of a text: words with the space before them; ``joined`` are tokens of their own."""
    whole = "|".join([*map(re.escape, joined), r" ?\w+", r"\s", r"[^\w\s]"])
    return re.findall(whole, text)


def logprob(tokens, place):
    said = blake3("\0".join(tokens[: place + 1]).encode()).digest(4)
    return -1 - int.from_bytes(said, "big") / 2**32


class CompletionServer(ChatServer):
    """Tells log-probabilities of prompts in the ``forms`` that it knows."""

    forms = ("echo", "prompt_logprobs")
    joined = ()
    counts = True

    def answer(self, body):
        self.asked.append(body)
        if self.fail:
            return self.fail.pop(0), b"not now"
        if self.raw is not None:
            return 200, self.raw.encode()
        tokens = split(body["prompt"], self.joined)
        logprobs = [None, *(logprob(tokens, n) for n in range(1, len(tokens)))]
        choice = {"text": "x", "finish_reason": "length"}
        if body.get("echo") and "echo" in self.forms:
            choice["logprobs"] = {"tokens": [*tokens, "x"], "token_logprobs": [*logprobs, -9.0]}
        if "prompt_logprobs" in body and "prompt_logprobs" in self.forms:
            pairs = zip(tokens, logprobs, strict=True)
            listed = [None, *({token: {"logprob": one}} for token, one in list(pairs)[1:])]
            choice["prompt_logprobs"] = listed
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 1} if self.counts else None
        return 200, json.dumps({"choices": [choice], "usage": usage}).encode()


@pytest.fixture
def server():
    with CompletionServer() as one:
        yield one


def endpoint_of(server):
    return Endpoint(url=server.url, model="m", tries_max=1)


def plain(text, choice):
    tokens = split(text + choice)
    start = len(split(text))
    return math.fsum(logprob(tokens, n) for n in range(start, len(tokens)))


@pytest.mark.parametrize("forms", [("echo",), ("prompt_logprobs",)])
@pytest.mark.parametrize("counts", [True, False])
def test_choices_have_the_sums_that_the_server_tells(server, forms, counts):
    server.forms, server.counts = forms, counts
    with open_client(1) as client:
        form = find_form(client, endpoint_of(server))
        choices = (" A", " two words", " C?")
        said = score_choices(client, endpoint_of(server), form, "Ask: so", choices)

    sums = [plain("Ask: so", one) for one in choices]
    assert said.choice_logprobs == pytest.approx(sums)
    assert said.text == choices[max(range(3), key=sums.__getitem__)]


def test_a_server_that_tells_nothing_is_named_with_both_forms(server):
    server.forms = ()
    with (
        open_client(1) as client,
        pytest.raises(SpecError, match=r"echo with logprobs: .* prompt_logprobs: .*ask mmlu-gen"),
    ):
        find_form(client, endpoint_of(server))


def test_a_form_that_is_refused_is_not_the_end(server):
    server.forms, server.fail = ("prompt_logprobs",), [400]
    with open_client(1) as client:
        assert find_form(client, endpoint_of(server)).name == "prompt_logprobs"


def test_a_choice_that_is_joined_with_its_prompt_is_named(server):
    server.joined = (": B",)
    with (
        open_client(1) as client,
        pytest.raises(DataError, match=r"gives the choice ' B' no tokens of its own"),
    ):
        score_choices(client, endpoint_of(server), FORMS[0], "Answer:", (" A", " B"))


JSONISH = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "logprobs", "tokens", "token_logprobs", "prompt_logprobs", "usage"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(FORMS), JSONISH)
def test_an_answer_of_any_shape_is_read_or_asked_for_again(form, found):
    from rollout.evaluations.remote.likelihood import _parse

    try:
        told = _parse(form, json.dumps({"choices": [found], "usage": found}).encode())
    except TryAgain:
        return
    assert told is None or len(told.tokens) == len(told.logprobs)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "mine.jsonl").write_text("\n".join(json.dumps(one) for one in QUESTIONS))
    return tmp_path


def measure(server, *words):
    asked = ["--suite", "mmlu", "--parameter", "mmlu.uri=mine.jsonl", "--output", "json"]
    return CliRunner().invoke(app, ["eval", "--url", server.url, "--model", "m", *asked, *words])


def test_a_suite_is_measured_and_each_answer_kept(server, here):
    done = measure(server)

    assert done.exit_code == 0, (done.output, done.exception)
    metrics = json.loads(done.stdout)["evaluations"][0]["metrics"]
    assert metrics["num_prompts"] == 9
    assert metrics["accuracy"]["value"] == metrics["acc"]["value"]
    kept = [
        json.loads(one)
        for one in (here / "runs/eval-1/items.jsonl").read_text().split("\n")[1:]
        if one
    ]
    asked = kept[0]["prompt"]
    told = kept[0]["answers"][0]["rewards"]
    assert told["mmlu/logprob_2"] == pytest.approx(plain(asked, " C"))


def test_several_answers_of_it_are_refused(server, here):
    done = measure(server, "--samples", "2", "--temperature", "1")

    assert isinstance(done.exception, SpecError)
    assert "it has given answers scored and samples nothing" in str(done.exception)


def test_a_server_of_chat_alone_is_refused_by_name(server, here):
    server.forms = ()
    done = measure(server)

    assert isinstance(done.exception, SpecError)
    assert "does not tell the log-probabilities of a prompt" in str(done.exception)
