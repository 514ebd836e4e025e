"""Whoever leaves, stalls or is cut off frees the engine at once, streaming or not."""

import asyncio
import json

import aiohttp
import pytest
from gateway_kit import chat, until

CHAT = "/v1/chat/completions"
LONG = "tokens=10000 delay=0.05"


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_cancels_the_engines_request(gateway, stream):
    served = await gateway()
    async with aiohttp.ClientSession(headers=served.headers()) as session:
        asking = asyncio.create_task(
            session.post(served.url + CHAT, json=chat(LONG, stream=stream))
        )
        await until(lambda: served.engines["a"].open, "the request")
        asking.cancel()
    await until(lambda: served.engines["a"].freed == 1, "the engine's end")
    await until(lambda: not len(served.state.live), "the gateway's end")
    assert served.state.pools[0].open_requests == 0


async def test_leaving_the_queue_frees_the_place_in_it(gateway):
    served = await gateway(slots=1)
    running = asyncio.create_task(served.stream(chat(LONG)))
    await until(lambda: served.engines["a"].open, "the request")
    waiting = asyncio.create_task(served.post(CHAT, chat("hi")))
    await until(lambda: served.state.pools[0].open_requests == 2, "the second")
    waiting.cancel()
    await until(lambda: served.state.pools[0].open_requests == 1, "its end")
    running.cancel()
    status, _, _ = await served.post(CHAT, chat("hi"))
    assert status == 200


async def test_a_revoked_key_ends_its_streams_with_an_error(gateway):
    served = await gateway()
    key = served.new_key()
    key_id = key.split("-")[2]
    await until(lambda: served.state.ring.holds(key_id, 0.0), "the key")
    running = asyncio.create_task(served.stream(chat(LONG), key))
    await until(lambda: served.engines["a"].open, "the request")
    served.keys.revoke(key_id)
    stream = await running
    error = json.loads(stream.split(b"\n\n")[-3].removeprefix(b"data: "))["error"]
    assert (error["code"], error["message"]) == ("invalid_api_key", "this key was revoked")
    assert served.engines["a"].freed == 1
    status, _, _ = await served.post(CHAT, chat("hi"), headers=served.headers(key))
    assert status == 401


async def test_an_answer_that_takes_too_long_is_ended(gateway):
    served = await gateway(settings={"request_seconds": 0.5})
    status, refused, _ = await served.post(CHAT, chat("hang"))
    assert (status, refused["error"]["code"]) == (504, "timeout")
    assert served.engines["a"].freed == 1


async def test_a_stream_that_says_nothing_is_ended(gateway):
    served = await gateway(settings={"idle_seconds": 0.5})
    stream = await served.stream(chat("delay=60"))
    assert b'"code":"timeout"' in stream
    assert stream.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_does_not_read_is_cut_off(gateway):
    served = await gateway(settings={"write_seconds": 1.0})
    host, port = served.url.removeprefix("http://").split(":")
    _reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    body = json.dumps(chat("tokens=200000", stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await until(lambda: served.engines["a"].open, "the request")
    await until(lambda: not served.engines["a"].open, "its end")
    assert served.engines["a"].freed == 1
    writer.close()
    status, _, _ = await served.post(CHAT, chat("hi"))
    assert status == 200


async def test_a_drain_lets_answers_end_and_takes_no_more(gateway):
    served = await gateway(settings={"drain_seconds": 30.0})
    running = asyncio.create_task(served.stream(chat("tokens=20 delay=0.05")))
    await until(lambda: served.engines["a"].open, "the request")
    drain = asyncio.create_task(served.state.drain())
    await until(lambda: served.state.draining)
    status, refused, headers = await served.post(CHAT, chat("hi"))
    assert (status, refused["error"]["code"], headers["Connection"]) == (503, "draining", "close")
    await drain
    assert (await running).count(b"data: ") == 21


async def test_what_is_left_at_the_end_of_a_drain_is_told(gateway):
    served = await gateway(settings={"drain_seconds": 0.2})
    running = asyncio.create_task(served.stream(chat(LONG)))
    await until(lambda: served.engines["a"].open, "the request")
    await served.state.drain()
    assert b'"code":"draining"' in await running
    assert served.engines["a"].freed == 1
