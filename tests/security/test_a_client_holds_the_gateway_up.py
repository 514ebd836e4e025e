"""Holders of a key want the gateway to serve nobody else: slow bodies, silence, giant and broken requests, floods.

After each of them the next honest request is answered.
"""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from gateway_kit import chat, until

CHAT = "/v1/chat/completions"
SETTINGS = {"body_seconds": 0.5, "body_bytes_max": 100_000, "queue_seconds": 2.0, "live_max": 64}


async def connect(served):
    host, port = served.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def head(served, length, *more):
    lines = [
        f"POST {CHAT} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {served.key}",
        f"Content-Length: {length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def still_serves(served):
    status, answer, _ = await served.post(CHAT, chat("hi"))
    assert (status, answer["model"]) == (200, "m")
    await until(lambda: not len(served.state.live), "the end of all others")
    assert served.state.bodies_bytes == 0
    assert served.state.pools[0].open_requests == 0


async def test_a_body_that_does_not_come_is_not_waited_for(gateway):
    served = await gateway(settings=SETTINGS)
    reader, writer = await connect(served)
    writer.write(head(served, 1000) + b"{")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    await still_serves(served)


async def test_a_body_without_bound_is_cut_off(gateway):
    served = await gateway(settings=SETTINGS)
    reader, writer = await connect(served)
    writer.write(head(served, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
    for _ in range(8):
        writer.write(b"7a12\r\n" + b"x" * 0x7A12 + b"\r\n")
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    await still_serves(served)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_half_closed_socket_is_a_client_that_left(gateway, stream):
    served = await gateway(settings=SETTINGS)
    _, writer = await connect(served)
    body = json.dumps(chat("tokens=1000000 delay=0.05", stream=stream)).encode()
    writer.write(head(served, len(body)) + body)
    await until(lambda: served.engines["a"].open, "the request")
    writer.write_eof()
    await until(lambda: served.engines["a"].freed, "the engine's end")
    await still_serves(served)


async def test_a_prompt_larger_than_the_bound_is_refused_before_it_is_read(gateway):
    served = await gateway(settings=SETTINGS)
    reader, writer = await connect(served)
    writer.write(head(served, 10**12))
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    await still_serves(served)


async def test_more_requests_than_there_is_room_for_are_told_so(gateway):
    served = await gateway(settings=SETTINGS)
    asking = [asyncio.create_task(served.post(CHAT, chat("hang"))) for _ in range(100)]
    await until(lambda: sum(one.done() for one in asking) >= 36, "refusals")
    refused = [one.result() for one in asking if one.done()]
    assert {status for status, _, _ in refused} == {503}
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await until(lambda: not len(served.state.live), "their end")
    await still_serves(served)


@pytest.mark.parametrize("seed", range(4))
async def test_fuzzed_requests_are_answered_or_cut_off(gateway, seed):
    served = await gateway(settings=SETTINGS)
    draw = random.Random(seed)
    good = json.dumps(chat("hi", max_tokens=3, stop=["x"], stream=True)).encode()
    for _ in range(40):
        body = bytearray(good)
        for _ in range(draw.randint(1, 6)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        status = await raw(served, head(served, len(body)) + bytes(body))
        assert status in {200, 400, 404}, bytes(body)
    for _ in range(20):
        request = bytearray(head(served, len(good)) + good)
        for _ in range(draw.randint(1, 4)):
            request[draw.randrange(len(request))] = draw.randrange(256)
        status = await raw(served, bytes(request))
        assert status is None or 200 <= status < 500 or status == 505
    await still_serves(served)


async def raw(served, request: bytes):
    """The status of an answer; None where the connection was closed or nothing came."""
    reader, writer = await connect(served)
    try:
        writer.write(request)
        line = await asyncio.wait_for(
            reader.readline(), 1.0
        )  # short: a broken head gets no answer at all, and that is fine
        return int(line.split()[1]) if line else None
    except (TimeoutError, ConnectionError):
        return None
    finally:
        writer.close()
