"""Bodies that are large, slow, cut off, packed, or made of very many parts: refused by their bound before anything is made of them."""

from __future__ import annotations

import asyncio
import gzip

import numpy as np
import pytest
from service_kit import (
    PREFIX,
    PROTOBUF_TYPE,
    SEQUENCE,
    WIRE,
    metrics_of,
    sequence_datum,
    wire_datum,
)

from rollout.service.tenants import bodies
from rollout.service.training.checks import DATA_MAX
from rollout.service.wire.scanning import FIELDS_MAX

MILLION = 1_000_000


async def send(client, path, body, **headers):
    headers = {"X-API-Key": client.key, **headers}
    async with client.http.post(f"{PREFIX}/{path}", data=body, headers=headers) as reply:
        return reply.status, await reply.json()


async def in_parts(body, size=1 << 16):
    for at in range(0, len(body), size):
        yield body[at : at + size]


def request_of(client, data=(), **more):
    ask = WIRE["ForwardBackwardRequest"](
        model_id=client.model, seq_id=client.next_seq(None), loss_fn="cross_entropy", data=data
    )
    for name, value in more.items():
        setattr(ask, name, value)
    return ask.SerializeToString()


def wrapped(number, body):
    """A field that is a message."""
    size, said = len(body), b""
    while size > 0x7F:
        said, size = said + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + said + bytes([size]) + body


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("path", "bound"),
    [("forward_backward", 1 << 24), ("create_session", 1 << 20), ("asample", 1 << 24)],
)
async def test_a_body_over_its_routes_bound_is_refused_whether_its_size_was_told_or_not(
    service, path, bound, told
):
    running = await service()
    client = running.client()
    body = b" " * (bound + 1)
    status, said = await send(client, path, body if told else in_parts(body))
    words = f"a body of {path} has at most {bound} bytes"
    assert (status, words in said["detail"]) == (413, True), said
    await client.begin()
    assert not running.door.bodies.taken


async def opened(running, client, size):
    """A connection on which a step's head was sent, and half of its body."""
    server = running.http.server
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = (
        f"POST {PREFIX}/optim_step HTTP/1.1\r\nHost: a\r\nX-API-Key: {client.key}\r\n"
        f"Content-Length: {size}\r\n\r\n"
    )
    writer.write(head.encode() + b"{" * (size // 2))
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("bound", ["BODY_SECONDS", "IDLE_SECONDS"])
async def test_a_body_that_does_not_come_is_given_up_and_others_are_served_meanwhile(
    service, bound, monkeypatch
):
    monkeypatch.setattr(bodies, bound, 0.5)
    running = await service()
    client = running.client()
    reader, writer = await opened(running, client, 1000)
    await client.begin()
    await client.answer(await client.backward([sequence_datum()]))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"408" in head.splitlines()[0]
    said = await reader.readuntil(b"}")
    assert b"the body did not come within" in said
    assert b"500 bytes have come" in said
    writer.close()
    assert not running.door.bodies.taken


@pytest.mark.parametrize("half", [True, False])
async def test_a_client_that_hangs_up_in_its_body_leaves_nothing_behind(service, half, caplog):
    running = await service()
    client = running.client()
    await client.begin()
    reader, writer = await opened(running, client, 1000)
    while not running.door.bodies.taken:
        await asyncio.sleep(0)
    if half:
        writer.write_eof()
        await reader.read()
    else:
        writer.transport.abort()
    async with asyncio.timeout(60):
        while running.door.bodies.taken:
            await asyncio.sleep(0)
    writer.close()
    assert "request failed" not in caplog.text
    await client.answer(await client.backward([sequence_datum()]))


async def test_a_client_that_sends_all_and_closes_its_side_is_answered(service):
    running = await service()
    client = running.client()
    server = running.http.server
    reader, writer = await asyncio.open_connection(server.host, server.port)
    body = b'{"sdk_version": "0"}'
    head = f"POST {PREFIX}/create_session HTTP/1.1\r\nHost: a\r\nX-API-Key: {client.key}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    writer.write_eof()
    said = await reader.read()
    writer.close()
    assert b"200 OK" in said or said == b""  # aiohttp may take a closed side for a client that left
    await client.begin()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
async def test_a_packed_body_is_refused_and_not_unpacked(service, encoding):
    client = (await service()).client()
    bomb = gzip.compress(b"0" * (64 << 20))
    status, said = await send(client, "asample", bomb, **{"Content-Encoding": encoding})
    assert (status, "a compressed body is not offered" in said["detail"]) == (422, True)
    await client.begin()


async def test_a_million_tokens_in_one_sequence_are_refused_by_their_number(service):
    client = (await service()).client()
    await client.begin()
    tokens = np.tile(np.asarray(SEQUENCE, "<i4"), MILLION // len(SEQUENCE) + 1)[:MILLION]
    said = await client.answer(await client.backward([wire_datum(tokens, tokens, {})]))
    assert (
        "data[0].model_input: expected 1 to 4096 tokens, which the base model can see at once, got 1000000"
        in said["error"]
    )
    await client.answer(await client.backward([sequence_datum()]))


async def test_a_million_tokens_in_one_prompt_are_refused_by_their_number(service):
    client = (await service()).client()
    await client.begin()
    sampler = (await client.answer(await client.save()))["sampling_session_id"]
    prompt = {"chunks": [{"tokens": [5] * MILLION}]}
    status, said = await client.sample(sampler, prompt=prompt)
    assert (status, "got 1000000 tokens" in said["detail"]) == (400, True), said
    prompt = {"chunks": [{"tokens": [5]}] * 4097}
    status, said = await client.sample(sampler, prompt=prompt)
    assert (status, "prompt.chunks: expected up to 4096 parts" in said["detail"]) == (400, True)


MANY = FIELDS_MAX + 1
PARTS = {
    "sequences": (lambda: b"\x1a\x00" * (DATA_MAX + 1), f"expected 1 to {DATA_MAX} sequences"),
    "pieces of text": (lambda: wrapped(3, b"\x0a\x00" * MANY), f"at most {FIELDS_MAX} fields"),
    "inputs": (lambda: wrapped(3, b"\x12\x00" * MANY), f"at most {FIELDS_MAX} fields"),
    "settings": (lambda: b"\x2a\x00" * MANY, f"at most {FIELDS_MAX} fields"),
    "axes": (
        lambda: wrapped(3, wrapped(2, wrapped(2, wrapped(4, b"\x01" * MANY)))),
        "a tensor's shape has more than two axes",
    ),
    "what nobody knows": (lambda: b"\x7a\x01a", "field 15 of ForwardBackwardRequest"),
    "what nobody knows, deep inside": (
        lambda: wrapped(3, wrapped(1, wrapped(9, b"a"))),
        "field 9 of Chunk (wire type 2), which no client up to tinker 0.38.0 sends, is not offered",
    ),
    "another type": (lambda: b"\x20\x01", "field 4 of ForwardBackwardRequest (wire type 0)"),
}


@pytest.mark.parametrize("what", PARTS)
async def test_many_parts_and_unknown_ones_are_refused_before_they_are_built(service, what):
    make, words = PARTS[what]
    client = (await service()).client()
    await client.begin()
    body = request_of(client, [sequence_datum()]) + make()
    said = await client.answer(
        await send(client, "forward_backward", body, **{"Content-Type": PROTOBUF_TYPE})
    )
    assert words in said["error"], said
    stepped = await client.answer(await client.step())
    assert "no gradient has been gathered" in stepped["error"]
    await client.answer(await client.backward([sequence_datum()]))


async def test_where_tokens_came_from_changes_nothing(service):
    client = (await service()).client()
    losses = []
    for number, spans in enumerate((b"", wrapped(3, b"a") + wrapped(4, b"b"))):
        await client.begin(number=number)
        body = request_of(client) + wrapped(3, sequence_datum().SerializeToString() + spans)
        said = await send(client, "forward_backward", body, **{"Content-Type": PROTOBUF_TYPE})
        losses.append(metrics_of(await client.answer(said)))
    assert losses[0] == losses[1]
