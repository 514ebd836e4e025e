"""``/openapi.json`` tells every route, and of every body just what is taken: a body that it allows is read, any other is refused by a field's name."""

from __future__ import annotations

import json

import aiohttp
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.inference.gateway.rules.asks import read_ask
from rollout.inference.gateway.rules.fields import FIELDS, PROMPTS
from rollout.inference.gateway.rules.openapi import build_description
from rollout.inference.gateway.rules.pooling import RERANK_PATHS, SCORE_PATHS
from rollout.inference.gateway.rules.refusals import ApiRefusal

DESCRIBED = build_description(files=True, is_open=False)
GOOD = {
    "query": "hi",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
}
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-3, 200).map(float)
    | st.sampled_from(["", "float", "function", "message.output_text.logprobs"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "include_usage", "a"]), inner, max_size=2)
    ),
    max_leaves=6,
)


TOGETHER = {
    "/classify": {"input": "hi"},
    **{one: {"queries": "hi", "documents": "ho"} for one in SCORE_PATHS},
    **{one: {"documents": "ho"} for one in RERANK_PATHS},
}
"""What bodies for vectors and scores need beside their model and their prompt."""


def needed(path):
    """The least body that the description allows."""
    prompt = {PROMPTS[path]: GOOD[PROMPTS[path]]} if path in PROMPTS else {}
    return {"model": "m", **prompt, **TOGETHER.get(path, {})}


def is_unequal(body):
    """Two lists of unlike lengths: what no schema says, and the description's words do."""
    pairs = ((body.get("queries"), body.get("documents")), (body.get("text_1"), body.get("text_2")))
    return any(
        isinstance(one, list)
        and len(one) > 1
        and len(one) != (len(other) if isinstance(other, list) else 1)
        for one, other in pairs
    )


def checker(path):
    body = DESCRIBED["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    schema = {**body["schema"], "components": DESCRIBED["components"]}
    return jsonschema.Draft202012Validator(schema)


def read(path, body):
    """The parameter by which it is refused; None where it is taken."""
    try:
        read_ask(path, json.dumps(body).encode())
    except ApiRefusal as refused:
        assert refused.status == 400
        assert refused.param
        return refused.param
    return None


@pytest.mark.parametrize("path", FIELDS)
@given(data=st.data())
def test_a_body_is_taken_where_the_description_allows_it(path, data):
    names = st.sampled_from([*FIELDS[path], "other"])
    body = needed(path) | data.draw(st.dictionaries(names, VALUE, min_size=1, max_size=2))
    allowed, taken = checker(path).is_valid(body), read(path, body) is None
    assert allowed == taken or (allowed and is_unequal(body))


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_alone_may_be_null_if_it_need_not_be_there(path):
    required = needed(path)
    for name in FIELDS[path]:
        body = {**required, name: None}
        assert (read(path, body) is None) == (name not in required), name
        assert checker(path).is_valid(body) == (name not in required), name


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({"max_tokens": 3.0, "temperature": 1.0}, {"max_tokens": 3, "temperature": 1.0}),
        ({"prompt": [[1.0, 2], [3]]}, {"prompt": [[1, 2], [3]]}),
        ({"logit_bias": {"5": 2.0}, "stop_token_ids": [7.0]}, {"stop_token_ids": [7]}),
    ],
)
def test_a_whole_number_may_be_written_with_a_point(given, passed):
    ask = read_ask("/v1/completions", json.dumps(needed("/v1/completions") | given).encode())
    found = json.loads(ask.encode("m", None))
    assert {name: found[name] for name in passed} == passed
    assert all(type(found[name]) is type(value) for name, value in passed.items())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"stream_options": {}}),
        ("/v1/responses", {"stream_options": {"include_usage": True}, "stream": False}),
        ("/v1/embeddings", {"input": ["a", ""]}),
        ("/v1/embeddings", {"input": [1, "a"]}),
        ("/v1/embeddings", {"input": [[]]}),
        ("/classify", {"messages": GOOD["messages"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/score", {"queries": None, "text_2": "b"}),
        ("/v2/rerank", {"documents": []}),
    ],
)
def test_what_fields_must_be_together_is_described(path, body):
    body = needed(path) | body
    assert not checker(path).is_valid(body)
    assert read(path, body) is not None


@pytest.mark.parametrize("files", [True, False])
async def test_every_route_is_described_and_none_that_is_not_there(gateway, files, tmp_path):
    served = await gateway(settings={"files": str(tmp_path)} if files else {})
    async with (
        aiohttp.ClientSession() as session,
        session.get(served.url + "/openapi.json") as answer,
    ):
        described = await answer.json()
    assert described == build_description(files=files, is_open=False)
    assert described["openapi"] == "3.1.0"
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            async with (
                aiohttp.ClientSession() as session,
                session.request(method, served.url + path.format(name="m", id="x")) as answer,
            ):
                open_to_all = operation.get("security") == []
                assert answer.status == (200 if open_to_all else 401), path
                assert str(answer.status) in operation["responses"]


async def test_a_route_that_is_asked_in_another_way_says_how(gateway):
    served = await gateway()
    async with (
        aiohttp.ClientSession() as session,
        session.put(served.url + "/v1/chat/completions") as answer,
    ):
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize("name", ["X-Session-Id", "User-Agent", "traceparent", "x-request-id"])
async def test_bytes_that_are_no_text_in_a_header_change_nothing(gateway, name, tmp_path):
    served = await gateway(settings={"log": str(tmp_path)})
    body = json.dumps({"model": "m", "messages": GOOD["messages"]}).encode()
    host, port = served.url.removeprefix("http://").split(":")
    import asyncio

    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n"
    )
    writer.write(head.encode() + name.encode() + b": \xff\xfe\xed\xa0\x80\r\n\r\n" + body)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    await served.end()
    [lines] = tmp_path.glob("*.jsonl")
    assert json.loads(lines.read_text())["code"] == 200
