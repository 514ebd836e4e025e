"""A body is read once: known fields are passed on, others refused by name, whatever its bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.inference.gateway.rules.asks import read_ask
from rollout.inference.gateway.rules.fields import CHAT, LEFT_OUT, ROUTES_OF_MODELS
from rollout.inference.gateway.rules.refusals import ApiRefusal

CHAT_PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


def ask(path=CHAT_PATH, **fields):
    return read_ask(path, json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode())


def refusal(body, path=CHAT_PATH):
    with pytest.raises(ApiRefusal) as refused:
        read_ask(path, body)
    return refused.value


def test_what_is_passed_on_names_the_resolved_model_and_asks_for_usage():
    sent = json.loads(ask(stream=True, seed=3, user="u").encode("m@7", "salt"))
    assert sent == {
        "model": "m@7",
        "messages": MESSAGES,
        "stream": True,
        "seed": 3,
        "stream_options": {"include_usage": True},
        "cache_salt": "salt",
    }


@pytest.mark.parametrize(
    "name",
    ["cache_salt", "priority", "chat_template", "kv_transfer_params", "vllm_xargs", "request_id"],
)
def test_a_field_that_reaches_past_the_request_is_refused_by_name(name):
    body = json.dumps({"model": "m", "messages": MESSAGES, name: "x"}).encode()
    refused = refusal(body)
    assert (refused.status, refused.param, refused.code) == (400, name, "unknown_parameter")


def test_hints_to_openais_own_service_change_nothing():
    plain = ask().encode("m", None)
    assert ask(**dict.fromkeys(LEFT_OUT, "x")).encode("m", None) == plain


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b'{"model": "\xc3\x28"}',
        b"[" * 100_000,
        b'{"model":"m","messages":[NaN]}',
    ],
    ids=lambda body: repr(body[:12]),
)
def test_bytes_that_are_no_json_object_are_a_bad_request(body):
    assert refusal(body).status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"model": "m" * 300}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"stream": 1}, "stream"),
        ({"stream": [1]}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(fields, param):
    refused = refusal(json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode())
    assert (refused.status, refused.param) == (400, param)


def test_a_number_without_bound_is_refused_and_not_passed_on():
    refused = refusal(b'{"model":"m","messages":[{"role":"user","content":1' + b"0" * 6000 + b"}]}")
    assert refused.status == 400


@given(
    st.sampled_from(sorted(ROUTES_OF_MODELS)),
    st.dictionaries(st.sampled_from(sorted(CHAT)) | st.text(max_size=6), JSON),
)
def test_any_object_is_answered_by_an_ask_or_a_named_refusal(path, fields):
    try:
        read = read_ask(path, json.dumps({"model": "m", **fields}).encode())
    except ApiRefusal as refused:
        assert refused.status == 400
        return
    assert json.loads(read.encode("m", "s"))["cache_salt"] == "s"
    assert read.tokens >= read.prompt_tokens >= 1


@given(st.binary(max_size=64))
def test_any_bytes_are_answered(body):
    assert refusal(body).status == 400
