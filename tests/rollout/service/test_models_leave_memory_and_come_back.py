"""Models leave memory when there are too many and come back for their next call, to the same chain value."""

from __future__ import annotations

import asyncio
import random
import sqlite3

import pytest
from service_kit import sequence_datum

NUM_MODELS, NUM_CALLS = 4, 8


async def send(client, model, seq):
    client.model = model
    if seq % 4 == 0:
        return await client.save_state(f"after-{seq}", seq=seq)
    return await (
        client.step(seq=seq) if seq % 2 == 0 else client.backward([sequence_datum()], seq=seq)
    )


async def begin(client):
    return [await client.begin(seed=n, number=n) for n in range(NUM_MODELS)]


async def chains(client, models):
    said = []
    for client.model in models:
        state = await client.state()
        said.append((state["calls"], state["chain"], state["broken"]))
    return said


async def calm_chains(service, place):
    client = (await service(place)).client()
    models = await begin(client)
    for seq in range(1, NUM_CALLS + 1):
        for model in models:
            await client.answer(await send(client, model, seq))
    return await chains(client, models)


@pytest.mark.parametrize("at_most", [pytest.param(1, marks=pytest.mark.slow), 2])
async def test_models_that_leave_memory_come_to_the_chains_of_models_that_stay(
    service, tmp_path, at_most
):
    wanted = await calm_chains(service, tmp_path / "calm")
    running = await service(tmp_path / "small", models_in_memory=at_most)
    client = running.client()
    models = await begin(client)
    for seq in range(1, NUM_CALLS + 1):
        acks = [await send(client, model, seq) for model in models]  # they wait while others leave
        for ack in acks:
            await client.answer(ack)
        assert len(running.desk._memory) <= at_most
    assert await chains(client, models) == wanted
    await running.stop(anchors=True)
    running = await service(tmp_path / "small", models_in_memory=at_most)
    assert len(running.desk._memory) == at_most
    assert await chains(running.follow(client), models) == wanted


@pytest.mark.slow
async def test_kills_while_models_leave_and_come_back_lose_nothing_and_apply_nothing_twice(
    service, tmp_path
):
    wanted = await calm_chains(service, tmp_path / "calm")
    draw = random.Random(5)
    place = tmp_path / "killed"
    running = await service(place, models_in_memory=1)
    client = running.client()
    models = await begin(client)
    todo = [(model, seq) for seq in range(1, NUM_CALLS + 1) for model in models]
    while todo:
        for _ in range(min(len(todo), draw.randint(1, 6))):
            assert (await send(client, *todo.pop(0)))[0] == 200
        for _ in range(draw.randint(0, 200)):
            await asyncio.sleep(0)
        await running.stop(anchors=draw.random() < 0.5)
        running = await service(place, models_in_memory=1)
        client = running.follow(client)
    for seq in range(1, NUM_CALLS + 1):
        for model in models:
            await client.answer(await send(client, model, seq))
    assert await chains(client, models) == wanted


async def test_a_model_that_comes_back_otherwise_stands_still_and_others_go_on(service, tmp_path):
    running = await service(models_in_memory=1)
    client = running.client()
    first, second = (await begin(client))[:2]
    for model in (first, second):
        await client.answer(await send(client, model, 1))
        await client.answer(await send(client, model, 2))
    assert first not in running.desk._memory
    with sqlite3.connect(tmp_path / "calls.sqlite") as connection:
        connection.execute(
            "UPDATE calls SET chain = 'blake3:0' WHERE line = ? AND seq = 2", (first,)
        )
    said = await client.answer(await send(client, first, 3))
    assert "LedgerError" in said["error"]
    assert said["category"] == "server"
    await client.answer(await send(client, second, 3))
    client.model = second
    assert (await client.state())["calls"] == 3
    client.model = first
    assert (await client.state())["calls"] == 2
