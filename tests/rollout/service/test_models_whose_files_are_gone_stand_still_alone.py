"""Files that are damaged or gone under a model that is on the disk: named to its owner, at a call and at a start, and others go on."""

from __future__ import annotations

import logging

import pytest
import safetensors
from service_kit import sequence_datum

from rollout.service.kept import tensors


async def step(client, model, seq):
    """A loss and a step on it; of the step its answer."""
    client.model = model
    await client.answer(await client.backward([sequence_datum()], seq=seq))
    return await client.answer(await client.step(seq=seq + 1))


def spoil(folder, how):
    for file in folder.iterdir():
        if how == "gone":
            file.unlink()
        elif how == "short":
            file.write_bytes(file.read_bytes()[:-7])
        else:
            file.write_bytes(b"\x00" * file.stat().st_size)


@pytest.mark.parametrize("how", ["gone", "short", "zeros"])
async def test_an_anchor_that_is_damaged_costs_a_model_on_the_disk_nothing_but_time(
    service, tmp_path, how
):
    chains = []
    for place in (tmp_path / "calm", tmp_path / "hurt"):
        running = await service(place, models_in_memory=1)
        client = running.client()
        first, second = await client.begin(number=0), await client.begin(number=1)
        await step(client, first, 1)
        await step(client, second, 1)
        if place.name == "hurt":
            assert first not in running.desk._memory
            spoil(place / "anchors", how)
        await step(client, first, 3)
        chains.append(await client.state())
        await step(client, second, 3)
    assert [(one["calls"], one["broken"]) for one in chains] == [(4, "")] * 2
    assert chains[0]["chain"] == chains[1]["chain"]


@pytest.mark.parametrize("how", ["gone", "short", "zeros"])
@pytest.mark.parametrize("loads", [True, False])
async def test_a_model_whose_state_is_damaged_is_told_and_others_go_on(
    service, tmp_path, how, loads
):
    running = await service(models_in_memory=1)
    client, other = running.client("mine"), running.client("yours")
    source = await client.begin(number=0)
    await step(client, source, 1)
    path = (await client.answer(await client.save_state("two", seq=3)))["path"]
    if loads:
        model = await client.begin(number=1)
        await client.answer(await client.load_state(path, optimizer=True, seq=1))
    else:
        model = await client.begin_from(path, 1, optimizer=True)
    others = await other.begin()
    await step(other, others, 1)
    assert model not in running.desk._memory
    client.model = model
    stood = await client.state()
    spoil(tmp_path / "states", how)
    spoil(tmp_path / "anchors", how)
    said = await client.answer(await client.backward([sequence_datum()], seq=2 if loads else 1))
    assert (said["category"], "StoreError" in said["error"]) == ("server", True)
    client.model = model
    state = await client.state()
    assert (state["calls"], state["chain"]) == (stood["calls"], stood["chain"])
    assert (await step(other, others, 3))["metrics"]["num_gathered:sum"] == 1
    client.model = source
    await client.answer(await client.backward([sequence_datum()], seq=4))
    await running.stop()
    if how != "gone":  # what is damaged is written again where it is taken away
        spoil(tmp_path / "states", "gone")
    running = await service()
    client, other = running.follow(client), running.follow(other)
    client.model = model
    said = await client.answer((200, {"request_id": f"{model}#{2 if loads else 1}"}))
    assert said.loss_fn_outputs
    await step(other, others, 5)


async def test_a_service_starts_though_a_state_is_gone_and_tells_who_began_from_it(
    service, tmp_path, caplog
):
    running = await service()
    client = running.client()
    source = await client.begin(number=0)
    await step(client, source, 1)
    path = (await client.answer(await client.save_state("two", seq=3)))["path"]
    model = await client.begin_from(path, 1, optimizer=True)
    await step(client, model, 1)
    stood = await client.state()
    await running.stop(anchors=True)
    spoil(tmp_path / "states", "gone")
    with caplog.at_level(logging.ERROR):
        running = await service()
    assert f"model={model} stands still: its files are not as they were" in caplog.text
    client = running.follow(client)
    await step(client, source, 4)
    client.model = model
    state = await client.state()
    assert (state["calls"], state["chain"]) == (2, stood["chain"])
    assert "cannot be made again" in state["broken"]
    said = await client.answer(await client.backward([sequence_datum()], seq=3))
    assert (said["category"], ".safetensors cannot be read" in said["error"]) == ("server", True)
    found = await client.answer((200, {"request_id": f"{model}#2"}))
    assert found["metrics"]["num_gathered:sum"] == 1  # what was answered is told again


async def test_a_model_that_cannot_be_kept_leaves_memory_and_is_made_again(
    service, monkeypatch, caplog
):
    running = await service(models_in_memory=1)
    client = running.client()
    first = await client.begin(number=0)
    await step(client, first, 1)

    def full(*_, **__):
        raise safetensors.SafetensorError("I/O error: No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(tensors, "save_file", full)
        second = await client.begin(number=1)
        await step(client, second, 1)
    assert first not in running.desk._memory
    assert f"model={first} has no new anchor" in caplog.text
    assert (await step(client, first, 3))["metrics"]["num_gathered:sum"] == 1
