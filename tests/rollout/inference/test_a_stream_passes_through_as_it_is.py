"""Events of a stream go through byte for byte, however the network cuts them; only usage and errors are touched."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.inference.gateway.rules.streaming import (
    DONE,
    EVENT_BYTES_MAX,
    EventRelay,
    StreamBroken,
)


def event(value):
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def delta(text):
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
)
HOSTILE = st.text() | st.sampled_from(
    ['"choices":[]', "data: [DONE]\n\n", 'data: {"error"', '\n\n"choices":[]']
)


def relay(stream, cuts, *, keep_usage):
    passing = EventRelay(keep_usage=keep_usage)
    places = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    out = b"".join(passing.feed(stream[a:b]) for a, b in pairwise(places))
    passing.end()
    return out, passing


@given(
    st.lists(HOSTILE, min_size=1, max_size=6),
    st.lists(st.integers(0, 10**6), max_size=20),
    st.booleans(),
)
def test_what_a_model_says_is_never_taken_for_an_event(texts, cuts, keep_usage):
    said = b"".join(map(delta, texts))
    out, passing = relay(said + USAGE + DONE, cuts, keep_usage=keep_usage)
    assert out == said + (USAGE if keep_usage else b"") + DONE
    assert (
        passing.usage.prompt_tokens,
        passing.usage.completion_tokens,
        passing.usage.cached_tokens,
    ) == (3, 2, 1)
    assert passing.done
    assert not passing.failed


def test_an_engines_error_has_openais_fields_and_the_stream_has_failed():
    broken = event(
        {"error": {"message": "x", "type": "InternalServerError", "param": None, "code": 500}}
    )
    out, passing = relay(delta("a") + broken + DONE, [], keep_usage=False)
    error = json.loads(out.split(b"\n\n")[1].removeprefix(b"data: "))["error"]
    assert error == {"message": "x", "type": "server_error", "param": None, "code": "engine_error"}
    assert out.endswith(DONE)
    assert passing.failed


@pytest.mark.parametrize("stream", [b"", delta("a"), delta("a")[:-1], DONE + b"data: "])
def test_a_stream_without_its_end_is_broken(stream):
    passing = EventRelay(keep_usage=False)
    passing.feed(stream)
    with pytest.raises(StreamBroken):
        passing.end()


def test_an_event_without_end_is_not_kept_for_ever():
    passing = EventRelay(keep_usage=False)
    with pytest.raises(StreamBroken):
        passing.feed(b"x" * (EVENT_BYTES_MAX + 1))
