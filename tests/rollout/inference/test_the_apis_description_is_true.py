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
from rollout.inference.gateway.rules.pooling import POOLED, RERANK_PATHS, SCORE_PATHS
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
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda it: it != int(it))
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
"""What bodies for vectors and scores need beside what the description asks for."""


def needed(path):
    """The least body that the description allows."""
    return {"model": "m", **({PROMPTS[path]: GOOD[PROMPTS[path]]} if path in PROMPTS else {})}


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
    body = (
        needed(path)
        | TOGETHER.get(path, {})
        | data.draw(st.dictionaries(names, VALUE, min_size=1, max_size=2))
    )
    if body.get("stream_options") is not None:
        body["stream"] = True  # without it the options are refused, which no schema of ours says
    allowed, taken = checker(path).is_valid(body), read(path, body) is None
    assert allowed or not taken
    assert (
        taken or not allowed or path in POOLED
    )  # what their fields must be together, no schema says


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_alone_may_be_null_if_it_need_not_be_there(path):
    required, together = needed(path), TOGETHER.get(path, {})
    for name in FIELDS[path]:
        body = {**required, **together, name: None}
        assert (read(path, body) is None) == (name not in required | together), name
        assert checker(path).is_valid(body) == (name not in required), name


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
