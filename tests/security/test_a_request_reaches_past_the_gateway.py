"""Holders of a key want more than their own answers: an engine's other routes, a second request inside one, another tenant's cache."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from gateway_kit import chat, until

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    [
        "/pause",
        "/sleep",
        "/collective_rpc",
        "/inference/v1/generate",
        "/v1//chat/completions",
        "/%2e%2e/pause",
    ],
)
async def test_no_engine_sees_a_route_that_is_not_ours(gateway, method, path):
    served = await gateway()
    async with (
        aiohttp.ClientSession(headers=served.headers()) as session,
        session.request(method, served.url + path, json={}) as answer,
    ):
        assert answer.status in {404, 405}
        assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}
    assert not served.engines["a"].seen


async def test_two_lengths_of_one_body_are_no_second_request(gateway):
    served = await gateway()
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    inner = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n\r\n"
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\nContent-Length: 4\r\n"
        f"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}".encode()
    )
    assert b" 400 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    assert not served.engines["a"].seen


@pytest.mark.parametrize(
    "field",
    [
        "cache_salt",
        "priority",
        "chat_template",
        "kv_transfer_params",
        "lora_request",
        "logits_processors",
    ],
)
async def test_a_field_of_the_engines_own_is_refused(gateway, field):
    served = await gateway()
    status, refused, _ = await served.post(CHAT, chat("hi", **{field: "x"}))
    assert (status, refused["error"]["param"]) == (400, field)
    assert not served.engines["a"].seen


async def test_no_header_of_a_client_reaches_an_engine(gateway):
    served = await gateway()
    sent = {
        "X-Request-Id": "same",
        "X-Vllm-Priority": "-9",
        "Cookie": "c=1",
        "X-Forwarded-For": "10.0.0.1",
    }
    await served.post(CHAT, chat("hi"), headers={**served.headers(), **sent})
    got = served.engines["a"].headers[0]
    assert not {"X-Vllm-Priority", "Cookie", "X-Forwarded-For", "Authorization"} & set(got)
    assert got["X-Request-Id"] != "same"


async def test_a_name_of_a_model_is_text(gateway):
    served = await gateway()
    for name in ("../m", "m\r\nX: y", "\x1b[2J", "{{7*7}}", "m\x00"):
        status, refused, headers = await served.post(CHAT, chat("hi", name))
        assert (status, refused["error"]["code"]) == (404, "model_not_found")
        assert "X" not in headers
    page = await _metrics(served)
    assert "7*7" not in page


async def _metrics(served) -> str:
    async with aiohttp.ClientSession() as session, session.get(served.url + "/metrics") as answer:
        return await answer.text()


async def test_a_key_that_expires_in_mid_stream_begins_nothing_more(gateway):
    import time

    served = await gateway()
    key = served.new_key(expires=time.time() + 3.0)
    await until(lambda: served.state.ring.keeps(key.split("-")[2]), "the key")
    running = asyncio.create_task(served.stream(chat("tokens=50 delay=0.1"), key))
    await until(lambda: not served.state.ring.holds(key.split("-")[2], time.time()), "the expiry")
    status, refused, _ = await served.post(CHAT, chat("hi"), headers=served.headers(key))
    assert (status, refused["error"]["code"]) == (401, "invalid_api_key")
    assert (await running).endswith(b"data: [DONE]\n\n")
