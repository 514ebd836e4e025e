"""What is sent to vLLM and what is believed of its answers."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.engines.vllm.wire import (
    Span,
    build_generate_body,
    label_version,
    parse_completion,
    parse_loaded,
    parse_spans,
)
from rollout.errors import EngineError, SpecError
from rollout.types import GenerateRequest, SamplingParams, VersionSpan, WeightVersion
from rollout_vllm.stops import STOP_TEXTS

VERSION = WeightVersion(lineage=2, step=7, digest="blake3:0", object="blake3:1")


def answer(tokens=(5, 2), logprobs=(-0.5, -0.25), finish="stop", spans=None, **changes) -> bytes:
    spans = [{"version": "2.7", "start": 0, "end": len(tokens)}] if spans is None else spans
    content = [
        {"token_id": t, "logprob": p, "rank": 1} for t, p in zip(tokens, logprobs, strict=False)
    ]
    choice = {
        "index": 0,
        "finish_reason": finish,
        "token_ids": list(tokens),
        "logprobs": {"content": content},
        "weight_versions": spans,
    }
    return json.dumps({"model": "policy", "choices": [choice | changes]}).encode()


def test_one_request_asks_for_one_sample_with_its_own_seed():
    sampling = SamplingParams(
        max_new_tokens=8, temperature=0.7, min_new_tokens=2, stop_token_ids=(1, 2)
    )

    request = GenerateRequest(prompt_ids=(4, 5), seeds=(2**62,), sampling=sampling)

    body = build_generate_body(request, 2**62)

    assert body["token_ids"] == (4, 5)
    assert body["sampling_params"] == {
        "n": 1,
        "seed": 2**62,
        "temperature": 0.7,
        "max_tokens": 8,
        "min_tokens": 2,
        "stop_token_ids": (1, 2),
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": 0,
    }


@pytest.mark.parametrize("temperature", [0.001, 2.5, -1.0])
def test_a_temperature_that_vllm_would_change_or_refuse_is_refused(temperature):
    sampling = SamplingParams(max_new_tokens=1, temperature=temperature)

    with pytest.raises(SpecError, match="temperature"):
        build_generate_body(GenerateRequest(prompt_ids=(1,), seeds=(0,), sampling=sampling), 0)


def test_the_server_is_told_of_stop_texts_and_of_what_a_completion_has_already(tmp_path):
    sampling = SamplingParams(max_new_tokens=8, stop=("END",))
    request = GenerateRequest(prompt_ids=(4, 5, 6), seeds=(1,), sampling=sampling, begun=2)

    body = build_generate_body(request, 1, tokenizer=tmp_path / "tokenizer.json")

    assert body["sampling_params"]["extra_args"] == {
        STOP_TEXTS: {
            "stop": ("END",),
            "begun": (5, 6),
            "tokenizer": str(tmp_path / "tokenizer.json"),
        }
    }


def test_an_answer_becomes_a_completion():
    completion = parse_completion(answer())

    assert completion.token_ids == (5, 2)
    assert completion.logprobs == (-0.5, -0.25)
    assert completion.finish == "stop"
    assert completion.text == ""
    assert completion.spans == (VersionSpan(start=0, end=2, lineage=2, step=7),)


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", "stop"), ("length", "length"), ("abort", "aborted")]
)
def test_finish_reasons_have_our_names(reason, finish):
    assert parse_completion(answer(finish=reason)).finish == finish


def test_a_sample_aborted_before_its_first_token_is_empty():
    body = answer(tokens=(), logprobs=(), finish="abort", spans=[], logprobs_=None, token_ids=None)

    assert parse_completion(body).token_ids == ()


@given(st.floats(-50, 0, width=32))
def test_log_probabilities_arrive_bit_for_bit(logprob):
    assert parse_completion(answer((3,), (logprob,))).logprobs == (logprob,)


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b'{"choices": []}',
        answer(logprobs=(-0.5,)),
        answer(logprobs=(-0.5, None)),
        answer(token_ids=[5, 3]),
        answer(token_ids=None),
        answer(finish="error"),
        answer(finish=None),
        answer(spans=[]),
        answer(spans=[{"version": "default", "start": 0, "end": 2}]),
        answer(spans=[{"version": "2.7", "start": 0, "end": 1}]),
    ],
)
def test_an_answer_that_is_missing_anything_is_refused(body):
    with pytest.raises(EngineError):
        parse_completion(body)


def test_a_version_keeps_its_lineage_and_step_through_the_server():
    spans = parse_spans([Span(version=label_version(VERSION), start=0, end=4)], 4)

    assert spans == (VersionSpan(start=0, end=4, lineage=2, step=7),)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_spans_that_cover_the_tokens_in_order_are_kept(lengths):
    edges = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    pieces = list(enumerate(pairwise(edges)))
    spans = [Span(version=f"0.{step}", start=a, end=b) for step, (a, b) in pieces]

    parsed = parse_spans(spans, edges[-1])

    assert [(s.step, (s.start, s.end)) for s in parsed] == pieces
    if len(spans) > 1:
        with pytest.raises(EngineError):
            parse_spans(spans[1:], edges[-1])


def test_workers_that_loaded_different_tensors_are_refused():
    def loaded(*digests):
        return json.dumps({"results": [{"digest": d, "num_tensors": 3} for d in digests]}).encode()

    assert parse_loaded(loaded("blake3:a", "blake3:a")) == "blake3:a"
    for body in (loaded("blake3:a", "blake3:b"), loaded(), b"{}"):
        with pytest.raises(EngineError):
            parse_loaded(body)
