"""What vLLM is asked for the likelihood of given replies, and what is believed of its answers."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.engines.vllm.scoring import (
    GivenScore,
    build_score_body,
    choose_likeliest,
    parse_score,
)
from rollout.errors import EngineError
from rollout.types import GenerateRequest, SamplingParams, VersionSpan

REQUEST = GenerateRequest(prompt_ids=(1, 2), seeds=(0,), sampling=SamplingParams(max_new_tokens=9))


def answer(told=({"2": -1.5}, {"7": -0.5}, {"3": -0.25}), finish="length", **changes):
    span = [{"version": "2.7", "start": 0, "end": 1}]
    choice = {"finish_reason": finish, "token_ids": [4], "weight_versions": span}
    listed = [
        None
        if one is None
        else {token: {"logprob": value, "rank": 1} for token, value in one.items()}
        for one in (None, *told)
    ]
    return json.dumps({"choices": [choice], "prompt_logprobs": listed, **changes}).encode()


def test_prompt_and_reply_are_one_prompt():
    body = build_score_body(REQUEST, (7, 3))

    assert body["token_ids"] == (1, 2, 7, 3)
    sampling = body["sampling_params"]
    assert (sampling["prompt_logprobs"], sampling["max_tokens"]) == (0, 1)


def test_an_answer_becomes_the_replys_log_probabilities_and_version():
    found = parse_score(answer(), 2, (7, 3))

    assert found == GivenScore(logprobs=(-0.5, -0.25), lineage=2, step=7)


def test_a_request_that_was_given_up_has_no_score():
    assert parse_score(answer(finish="abort"), 2, (7, 3)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b'{"choices": []}',
        answer(prompt_logprobs=None),
        answer(told=({"2": -1.5}, {"7": -0.5})),
        answer(told=({"2": -1.5}, {"7": -0.5}, None)),
        answer(told=({"2": -1.5}, {"7": -0.5}, {"9": -0.25})),
        answer(told=({"2": -1.5}, {"7": -0.5}, {"3": "x"})),
        answer(choices=[{"finish_reason": "length", "weight_versions": []}]),
    ],
)
def test_an_answer_that_lacks_anything_is_refused(body):
    with pytest.raises(EngineError):
        parse_score(body, 2, (7, 3))


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_a_server_sends_is_a_score_or_refused(body):
    with pytest.raises(EngineError):
        parse_score(body, 2, (7, 3))


@given(st.lists(st.floats(-90, 0), min_size=1, max_size=5))
def test_the_likeliest_is_the_first_of_the_highest_sums(sums):
    choices = tuple((n + 1,) for n in range(len(sums)))
    scores = [GivenScore(logprobs=(one,), lineage=0, step=3) for one in sums]

    found = choose_likeliest(choices, scores)

    assert found.choice_logprobs == tuple(map(math.fsum, ([one] for one in sums)))
    assert found.token_ids == choices[sums.index(max(sums))]
    assert found.spans == (VersionSpan(start=0, end=1, lineage=0, step=3),)


def test_scores_of_two_versions_are_no_comparison():
    scores = [GivenScore(logprobs=(-1.0,), lineage=0, step=step) for step in (1, 2)]
    with pytest.raises(EngineError, match="scored 2 choices with the versions"):
        choose_likeliest(((1,), (2,)), scores)
