"""Bytes that wait and bytes that are read have bounds, of a key and of all: full is 429, others come in, and memory stays bounded."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import aiohttp
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_kit import PREFIX, PROTOBUF_TYPE, WIRE, sequence_datum

from rollout.service.calls import LossAnswer, encode_fact
from rollout.service.refusals import CallRefused
from rollout.service.tenants.room import RoomBounds, SharedRoom

MIB, PIECE = 1 << 20, 1 << 16
LONG = tuple([5, 6, 7] * 400)
SMALL = RoomBounds(all_bytes=60_000, key_bytes=25_000)


async def push(client, seqs, tokens=LONG):
    """The numbers of the calls that were taken in, and what the others were told."""
    taken, told = [], set()
    for seq in seqs:
        status, said, headers = await client.backward_with_headers(
            [sequence_datum(tokens)], seq=seq
        )
        if status == 200:
            taken.append(seq)
        else:
            assert status == 429
            assert int(headers["Retry-After"]) == 1
            told.add(said["detail"].partition(":")[0])
    return taken, told


async def test_a_key_that_floods_fills_its_own_room_and_others_come_in(service):
    running = await service(computes=False, queue=SMALL)
    client, other = running.client("flood"), running.client("bob")
    await client.begin()
    await other.begin()
    taken, told = await push(client, range(1, 40))
    assert told == {"calls that wait for their answers"}
    assert taken == list(range(1, len(taken) + 1))
    assert running.desk.use.room.taken["flood"] <= SMALL.key_bytes
    assert (await push(other, [1]))[0] == [1]
    running.tasks.append(asyncio.create_task(running.desk.compute_forever()))
    for seq in taken:
        await client.answer((200, {"request_id": f"{client.model}#{seq}"}))
    await other.answer((200, {"request_id": f"{other.model}#1"}))
    assert not running.desk.use.room.taken
    assert (await push(client, [taken[-1] + 1]))[0] == [taken[-1] + 1]


async def test_many_keys_together_have_a_bound_too(service):
    running = await service(computes=False, queue=SMALL)
    clients = [running.client(f"k{number}") for number in range(4)]
    for client in clients:
        await client.begin()
        await push(client, range(1, 10))
    assert sum(running.desk.use.room.taken.values()) <= SMALL.all_bytes
    status, said = await clients[-1].backward([sequence_datum(LONG)], seq=60)
    assert (status, "of all keys, of at most" in said["detail"]) == (429, True)


async def test_calls_that_came_too_early_never_keep_out_the_one_that_is_missing(service):
    running = await service(computes=False, queue=SMALL)
    client = running.client()
    await client.begin()
    taken, told = await push(client, range(2, 40), LONG[:300])
    assert taken and told
    assert (await push(client, [1], LONG[:300]))[0] == [1]
    running.tasks.append(asyncio.create_task(running.desk.compute_forever()))
    for seq in taken:
        await client.answer((200, {"request_id": f"{client.model}#{seq}"}))
    assert (await client.state())["calls"] == len(taken) + 1
    assert not running.desk.use.room.ahead


async def test_what_waits_is_counted_again_after_a_kill(service):
    running = await service(computes=False, queue=SMALL)
    client = running.client()
    await client.begin()
    taken, _ = await push(client, range(1, 40))
    before = dict(running.desk.use.room.taken)
    await running.stop()
    client = (running := await service(computes=False, queue=SMALL)).follow(client)
    assert running.desk.use.room.taken == before
    assert (await push(client, [taken[-1] + 1]))[0] == []


async def test_a_call_that_could_never_fit_is_too_large_and_not_tried_for_ever(service):
    running = await service(computes=False, queue=RoomBounds(all_bytes=9000, key_bytes=4000))
    client = running.client()
    await client.begin()
    status, said = await client.backward([sequence_datum(LONG)])
    assert (status, "a key may have 4000" in said["detail"]) == (413, True)
    assert (await client.step(seq=1))[0] == 200


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 90), st.integers(1, 200))
def test_no_order_of_taking_and_giving_goes_beyond_a_bound(seed, key_bytes, all_bytes):
    bounds = RoomBounds(all_bytes=all_bytes, key_bytes=key_bytes)
    room, draw, held = SharedRoom(bounds, "things"), random.Random(seed), []
    for _ in range(120):
        if held and draw.random() < 0.4:
            owner, size, ahead = held.pop(draw.randrange(len(held)))
            room.give(owner, size, ahead=ahead)
            continue
        one = (draw.choice("abc"), draw.randint(0, 60), draw.random() < 0.5)
        try:
            room.take(one[0], one[1], ahead=one[2])
        except CallRefused as refusal:
            assert refusal.status in {413, 429}
            continue
        held.append(one)
        assert sum(room.taken.values()) == sum(size for _, size, _ in held) <= all_bytes
        assert max(room.taken.values(), default=0) <= key_bytes
        assert sum(room.ahead.values()) <= all_bytes // 2
    for owner, size, ahead in held:
        room.give(owner, size, ahead=ahead)
    assert not room.taken
    assert not room.ahead


async def slow_body(size, gate):
    yield b"x" * size
    await gate.wait()
    yield b"x"


async def test_a_body_that_does_not_end_holds_its_own_keys_room_until_its_client_leaves(service):
    bounds = RoomBounds(all_bytes=200_000, key_bytes=50_000)
    running = await service(computes=False, bodies=bounds)
    client, other = running.client("slow"), running.client("bob")
    await client.begin()
    await other.begin()
    gate = asyncio.Event()
    async with aiohttp.ClientSession() as session:
        url = client.http.make_url(f"{PREFIX}/forward_backward")
        headers = {"X-API-Key": client.key, "Content-Type": PROTOBUF_TYPE}
        slow = asyncio.create_task(session.post(url, data=slow_body(49_990, gate), headers=headers))
        while sum(running.door.bodies.taken.values()) < 49_990:
            await asyncio.sleep(0)
        status, said, told = await client.backward_with_headers([sequence_datum()])
        assert (status, "Retry-After" in told) == (429, True)
        assert said["detail"].startswith("bodies of requests that are read")
        assert (await other.backward([sequence_datum()]))[0] == 200
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
    while running.door.bodies.taken:
        await asyncio.sleep(0)
    assert (await client.backward([sequence_datum()], seq=1))[0] == 200


async def test_memory_stays_within_its_bounds_under_a_flood_of_large_calls(service):
    queue = RoomBounds(all_bytes=12 * MIB, key_bytes=8 * MIB)
    bodies = RoomBounds(all_bytes=6 * MIB, key_bytes=4 * MIB)
    running = await service(computes=False, queue=queue, bodies=bodies)
    clients = [running.client(name) for name in ("ann", "bob", "cyd")]
    for client in clients:
        await client.begin()
    large = sequence_datum(tuple([5] * 200_000))
    offered = [bodies_of(client, large, range(1, 15)) for client in clients]
    tracemalloc.start()
    try:
        asked = map(flood, clients, offered)
        statuses = [one for found in await asyncio.gather(*asked) for one in found]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert statuses.count(200) > 0
    assert statuses.count(200) + statuses.count(429) == len(statuses)
    assert sum(len(body) for found in offered for body in found) > 90 * MIB
    assert peak < 6 * bodies.all_bytes
    assert sum(running.desk.use.room.taken.values()) <= queue.all_bytes


def bodies_of(client, datum, seqs):
    asks = [
        WIRE["ForwardBackwardRequest"](
            model_id=client.model, seq_id=seq, loss_fn="cross_entropy", data=[datum]
        )
        for seq in seqs
    ]
    return [ask.SerializeToString() for ask in asks]


async def in_pieces(body):
    """So that the client keeps no copy of it, and the service does not hear how long it is."""
    for at in range(0, len(body), PIECE):
        yield body[at : at + PIECE]


async def flood(client, bodies):
    """Statuses of calls that are sent at once."""
    headers = {"X-API-Key": client.key, "Content-Type": PROTOBUF_TYPE}

    async def send(body):
        try:
            async with client.http.post(
                f"{PREFIX}/forward_backward", data=in_pieces(body), headers=headers
            ) as reply:
                return reply.status
        except aiohttp.ClientError:
            return 429  # it was told so before its body had come, and wrote on

    return await asyncio.gather(*map(send, bodies))


@pytest.mark.parametrize("words", [b"", b"\xff" * 5000, b"{" * 5000])
async def test_what_is_no_call_leaves_nothing_held(service, words):
    running = await service(computes=False)
    client = running.client()
    await client.begin()
    headers = {"X-API-Key": client.key, "Content-Type": PROTOBUF_TYPE}
    for path in ("forward_backward", "optim_step", "asample", "create_model"):
        async with client.http.post(f"{PREFIX}/{path}", data=words, headers=headers) as reply:
            assert 400 <= reply.status < 500
    assert not running.door.bodies.taken
    assert not running.desk.use.room.taken


def put_large_answer(running, client, size):
    part = b"\x00" * (size // 2)
    answer = LossAnswer(logprobs=(part,), losses=(part,), metrics={"loss:sum": 1.0})
    running.book.accept(client.model, 1, "d", b"c")
    running.book.answer(client.model, 1, encode_fact(answer), "blake3:" + "0" * 64)
    return {"request_id": f"{client.model}#1"}


async def ask_and_take_nothing(client, ask):
    """A connection whose answer waits in the service, as its client reads none of it."""
    url = client.http.make_url(f"{PREFIX}/retrieve_future")
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=1 << 10)
    body = msgspec.json.encode(ask)
    head = f"POST {url.path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {client.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return (await reader.readline()).split()[1], writer


async def test_answers_that_nobody_takes_hold_their_own_keys_room_only(service):
    bounds = RoomBounds(all_bytes=80 * MIB, key_bytes=40 * MIB)
    running = await service(computes=False, bodies=bounds)
    client, other = running.client("greedy"), running.client("bob")
    for one in (client, other):
        await one.begin()
    ask, theirs = (put_large_answer(running, one, 16 * MIB) for one in (client, other))
    tracemalloc.start()
    try:
        found = [await ask_and_take_nothing(client, ask) for _ in range(12)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    statuses = [status for status, _ in found]
    assert (statuses.count(b"200"), statuses.count(b"429")) == (2, 10)
    assert list(running.door.answers.taken) == ["greedy"]
    assert peak < 8 * 16 * MIB
    assert len((await other.look(theirs["request_id"])).loss_fn_outputs) == 1
    for _, writer in found:
        writer.transport.abort()
    while running.door.answers.taken:
        await asyncio.sleep(0)
    assert len((await client.look(ask["request_id"])).loss_fn_outputs) == 1


async def test_who_asks_for_waiting_answers_in_a_loop_keeps_nobody_from_the_book(
    service, monkeypatch
):
    running = await service(computes=False)
    client = running.client()
    model = await client.begin()
    acks = [await client.backward([sequence_datum()]) for _ in range(3)]
    looked = []
    monkeypatch.setattr(running.door, "poll_seconds", 0.0)
    find = running.book.find

    def noted(line, seq, *, whole=True):
        looked.append(whole)
        return find(line, seq, whole=whole)

    monkeypatch.setattr(running.book, "find", noted)
    for _ in range(5):
        for _, ack in acks:
            assert await client.look(ack["request_id"]) is None
    assert looked == [False] * 15  # once a question, and no bytes of calls
    running.tasks.append(asyncio.create_task(running.desk.compute_forever()))
    for ack in acks:
        assert (await client.answer(ack)).loss_fn_outputs
    assert await client.look(f"{model}#2") is not None


async def test_a_base_that_is_sampled_from_is_reckoned_once(service, monkeypatch):
    running = await service()
    client = running.client()
    await client.begin()
    weights = running.desk._keeper.weights
    keep, kept = weights.keep, []
    monkeypatch.setattr(weights, "keep", lambda tensors: kept.append(1) or keep(tensors))
    ask = {"session_id": client.session, "base_model": "tiny"}
    for number in range(5):
        said = await client.post(
            "create_sampling_session", ask | {"sampling_session_seq_id": number}
        )
        assert (await client.answer(await client.sample(said[1]["sampling_session_id"]))).sequences
    assert len(kept) == 1
