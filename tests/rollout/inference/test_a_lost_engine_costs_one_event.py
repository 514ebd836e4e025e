"""Engines that fail: another is asked before the first byte; behind it the stream ends with an error that clients understand."""

import asyncio
import json

import pytest
from gateway_kit import chat, until
from simulated_engine import start_engine

CHAT = "/v1/chat/completions"


def errors(stream):
    events = [one.removeprefix(b"data: ") for one in stream.split(b"\n\n") if one]
    return [json.loads(one)["error"] for one in events if one.startswith(b'{"error"')]


@pytest.mark.parametrize(
    ("wish", "code"), [("die", "engine_lost"), ("junk", "engine_lost"), ("fail", "engine_error")]
)
async def test_a_stream_that_breaks_says_so_and_the_next_request_is_served(gateway, wish, code):
    served = await gateway()
    stream = await served.stream(chat(wish))
    assert [one["code"] for one in errors(stream)] == [code]
    assert stream.endswith(b"data: [DONE]\n\n")
    status, _, _ = await served.post(CHAT, chat("hi"))
    assert status == 200
    assert len(served.state.live) == 0


async def test_an_engine_that_is_gone_is_not_met_by_a_client_while_another_lives(gateway):
    served = await gateway(m=("a", "b"))
    await served.runners["a"].cleanup()
    for _ in range(6):
        status, _, _ = await served.post(CHAT, chat("hi"))
        assert status == 200
    assert len(served.engines["b"].seen) == 6


async def test_a_request_waits_for_an_engine_that_comes_back(gateway):
    served = await gateway()
    await served.runners["a"].cleanup()
    await until(lambda: not served.state.pools[0].ready, "the loss")
    waiting = asyncio.create_task(served.post(CHAT, chat("hi")))
    await until(lambda: served.state.pools[0].open_requests, "the request")
    runner = await start_engine(served.engines["a"], str(served.folder / "a.sock"))
    status, _, _ = await waiting
    await runner.cleanup()
    assert status == 200


async def test_without_any_engine_a_request_is_told_to_come_again(gateway):
    served = await gateway(settings={"queue_seconds": 0.2})
    await served.runners["a"].cleanup()
    await until(lambda: not served.state.pools[0].ready, "the loss")
    status, refused, headers = await served.post(CHAT, chat("hi"))
    assert (status, refused["error"]["code"]) == (503, "no_engine")
    assert 1 <= int(headers["Retry-After"]) <= 60


@pytest.mark.parametrize(
    ("engines", "ours"), [(400, 400), (422, 422), (401, 502), (404, 400), (500, 502), (503, 503)]
)
async def test_an_engines_refusal_comes_in_openais_fields(gateway, engines, ours):
    served = await gateway()
    status, refused, headers = await served.post(CHAT, chat(f"status={engines}"))
    assert status == ours
    assert set(refused["error"]) == {"message", "type", "param", "code"}
    assert refused["error"]["code"] is None or isinstance(refused["error"]["code"], str)
    assert ("Retry-After" in headers) == (ours == 503)
