"""A service that ends anywhere goes on where its book ends, and comes to what it would have come to."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from dataclasses import replace

import pytest
from service_kit import IDENTITY, sequence_datum

from rollout.errors import LedgerError
from rollout.ledger.sqlite.call_book import CallBook
from rollout.service.desk import TrainingDesk
from rollout.service.kept.tensors import Keeper

NUM_CALLS = 14
KILLS = 10
SAMPLED = {"logprobs": [-5.0] * 6, "advantages": [0.5, -0.5] * 3}


async def send(client, seq):
    """Call ``seq`` of a loop that has every kind of call, a refused one too."""
    kind = seq % 6
    if seq > 12:
        return await client.load_state("after-11", optimizer=seq == 13, seq=seq)
    if kind == 1:
        return await client.backward([sequence_datum()], seq=seq)
    if kind == 2:
        return await client.backward([sequence_datum(**SAMPLED)], "ppo", seq=seq)
    if kind == 3:
        return await client.backward([sequence_datum(weights=[1.0])], seq=seq)
    if kind == 4:
        return await client.step(seq=seq)
    if kind == 5:
        save = client.save if seq < 6 else client.save_state
        return await save(f"after-{seq}", seq=seq)
    return await client.backward([sequence_datum()], seq=seq, forward_only=True)


async def whole_loop(client) -> str:
    await client.begin()
    for seq in range(1, NUM_CALLS + 1):
        await client.answer(await send(client, seq))
    return (await client.state())["chain"]


async def test_a_service_that_is_started_again_stands_where_it_stood(service):
    running = await service()
    client = running.client()
    chain = await whole_loop(client)
    first = await client.look(f"{client.model}#2")
    await running.stop()
    client = (await service()).follow(client)
    assert (await client.state())["chain"] == chain
    assert await client.look(f"{client.model}#2") == first
    client.seq = NUM_CALLS
    await client.answer(await client.backward([sequence_datum()]))
    assert (await client.answer(await client.step()))["metrics"]["num_gathered:sum"] == 1


async def test_kills_at_drawn_moments_lose_no_acknowledged_call_and_apply_none_twice(
    service, tmp_path
):
    calm = await service(tmp_path / "calm")
    wanted = await whole_loop(calm.client())
    draw = random.Random(22)
    running = await service(tmp_path / "killed")
    client = running.client()
    await client.begin()
    acknowledged = 0
    for _ in range(KILLS):
        for _ in range(draw.randint(0, 2)):
            if acknowledged < NUM_CALLS:
                status, said = await send(client, acknowledged + 1)
                assert status == 200, said
                acknowledged += 1
        await asyncio.sleep(draw.random() * 0.03)
        await running.stop()
        running = await service(tmp_path / "killed")
        client = running.follow(client)
    for seq in range(
        1, NUM_CALLS + 1
    ):  # a client that does not know what arrived sends it all again
        await client.answer(await send(client, seq))
    state = await client.state()
    assert (state["calls"], state["chain"]) == (NUM_CALLS, wanted)


async def test_calls_that_were_acknowledged_and_not_made_are_made_at_the_next_start(service):
    running = await service(computes=False)
    client = running.client()
    await client.begin()
    for seq in (3, 1, 2):
        assert (await send(client, seq))[0] == 200
    await running.stop()
    running = await service()
    client = running.follow(client)
    refused = await client.answer((200, {"request_id": f"{client.model}#3"}))
    assert "expected 6 values" in refused["error"]
    sampler = (await client.answer(await client.save(seq=4)))["sampling_session_id"]
    await running.stop()
    running = await service(computes=False)
    client = running.follow(client)
    ack = await client.sample(sampler, params={"temperature": 1.0})
    await running.stop()
    client = (await service()).follow(client)
    assert len((await client.answer(ack)).sequences) == 1


TAMPERED = {
    "another call": ("UPDATE calls SET call = x'00' WHERE seq = 2", "call 2 of .* is damaged"),
    "another chain": (
        "UPDATE calls SET chain = 'blake3:0' WHERE seq = 2",
        "call 2 .* with the same answer: the book",
    ),
    "another answer": (
        "UPDATE calls SET answer = x'00' WHERE seq = 4",
        "call 4 .* with another answer: the book",
    ),
    "a call less": (
        "DELETE FROM calls WHERE seq = 2",
        "call 2 of .* is not in the book, though call 3 is answered",
    ),
}


@pytest.mark.parametrize("what", list(TAMPERED))
async def test_a_book_that_was_changed_is_not_believed(service, tmp_path, what):
    running = await service()
    await whole_loop(running.client())
    await running.stop()
    sql, words = TAMPERED[what]
    with sqlite3.connect(tmp_path / "calls.sqlite") as connection:
        connection.execute(sql)
    if (
        words is None
    ):  # what was told to a client is what the chain says, whatever the book tells now
        await service()
        return
    with pytest.raises(LedgerError, match=words):
        await service()


async def test_a_book_is_of_one_process_one_machine_and_its_bases(service, tmp_path, tiny_base):
    running = await service()
    await running.client().begin()
    path = tmp_path / "calls.sqlite"
    with pytest.raises(LedgerError, match="in use by another service"):
        CallBook(path, IDENTITY)
    await running.stop()
    with pytest.raises(LedgerError, match="machine was test, is other"):
        CallBook(path, {"machine": "other"})
    for bases in ({}, {"tiny": replace(tiny_base, digest="blake3:other")}):
        book = CallBook(path, IDENTITY)
        desk = TrainingDesk(book, bases, Keeper.under(tmp_path), threads=1)
        with pytest.raises(LedgerError, match=r"is over the base tiny .* which is not served"):
            await desk.open()
        await desk.close()
        book.close()


async def test_what_was_saved_is_there_again_though_its_file_was_lost(service, tmp_path):
    running = await service()
    client = running.client()
    await client.begin()
    sampler = (await client.answer(await client.save()))["sampling_session_id"]
    await running.stop()
    for file in (tmp_path / "weights").iterdir():
        file.unlink()
    client = (await service()).follow(client)
    assert len((await client.answer(await client.sample(sampler))).sequences) == 1
