"""Traces go to a third party: they hold no text of a client's, and no client takes another's spans from them."""

from __future__ import annotations

import asyncio
import json

import pytest
from gateway_kit import chat, until
from span_collector import collecting, lost_by

CHAT = "/v1/chat/completions"
SECRET = "s3cr3t-words"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def start(gateway, collector):
    return await gateway(settings={"traces": f"{collector.url}/v1/traces"})


async def flush(served, collector):
    await served.state.close()
    return [one for one in collector.spans if one.service == "rollout-gateway"]


async def test_no_prompt_completion_key_or_other_text_of_a_client_is_in_a_span(gateway):
    with collecting() as collector:
        served = await start(gateway, collector)
        noisy = {
            **served.headers(),
            "X-Request-Id": served.key,
            "User-Agent": SECRET,
            "tracestate": f"a={SECRET}",
            "baggage": f"a={SECRET}",
            "Host": SECRET,
        }
        body = chat(SECRET, stop=[SECRET], user=SECRET, metadata={"a": SECRET}, max_tokens=4)
        tool = {"type": "function", "function": {"name": SECRET, "parameters": {}}}
        await served.post(CHAT, {**body, "tools": [tool]}, headers=noisy)
        wrong = {**body, "temperature": SECRET, "seed": [SECRET]}
        refused, _, _ = await served.post(CHAT, wrong, headers=noisy)
        await served.post(CHAT, chat(f"status=400 {SECRET}"), headers=noisy)
        unknown, _, _ = await served.post(CHAT, chat("Hi", model=SECRET), headers=noisy)
        assert len(await flush(served, collector)) == 2
    assert (refused, unknown) == (400, 404)  # before either is a request that is traced
    raw = b"".join(collector.raw)
    secret = served.key.split("-", 3)[3]
    for told in (SECRET, secret, served.key, "w w w"):
        assert told.encode() not in raw


@pytest.mark.parametrize("number", ["1" * 30, "-" + "9" * 300, "1e400", "1e308", "-0.0"])
async def test_a_number_without_a_form_in_otlp_costs_nobody_a_span(gateway, number):
    with collecting() as collector:
        served = await start(gateway, collector)
        body = json.dumps(chat("Hi"))[:-1] + f', "seed": {number}, "temperature": {number}}}'
        await served.post(CHAT, body.encode())
        status, _, _ = await served.post(CHAT, chat("another's", max_tokens=3))
        assert status == 200
        spans = await flush(served, collector)
    assert 3 in [one.attributes.get("gen_ai.request.max_tokens") for one in spans]
    assert lost_by(served.state) == 0


@pytest.mark.parametrize(
    "header",
    [
        "00-" + "0" * 8000,
        "-" * 8000,
        f"00-{TRACE}-{SPAN}-01" + "-x" * 3000,
        f"zz-{TRACE}-{SPAN}-01",
        "\xff\xfe",
        "\t" * 8000,
    ],
)
async def test_a_hostile_traceparent_begins_a_trace_of_our_own(gateway, header):
    with collecting() as collector:
        served = await start(gateway, collector)
        given = {**served.headers(), "traceparent": header}
        status, _, _ = await served.post(CHAT, chat("Hi"), headers=given)
        spans = await flush(served, collector)
    assert status in {200, 400}
    assert [one.trace_id for one in spans if one.trace_id == TRACE] == []
    assert len(spans) == (status == 200)


async def test_who_has_no_key_makes_no_span(gateway):
    with collecting() as collector:
        served = await start(gateway, collector)
        given = {"Authorization": "Bearer nobody", "traceparent": f"00-{TRACE}-{SPAN}-01"}
        for _ in range(20):
            status, _, _ = await served.post(CHAT, chat("Hi"), headers=given)
            assert status == 401
        assert await flush(served, collector) == []


async def test_a_collector_that_answers_nonsense_ends_nothing(gateway):
    async def answer(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n\xff\xff")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    served = await gateway(settings={"traces": f"http://127.0.0.1:{port}/v1/traces"})
    status, _, _ = await served.post(CHAT, chat("Hi"))
    assert status == 200
    await until(lambda: lost_by(served.state) == 1, "a lost span")
    status, _, _ = await served.post(CHAT, chat("Hi"))
    assert status == 200
    server.close()
