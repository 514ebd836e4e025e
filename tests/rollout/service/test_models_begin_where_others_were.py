"""Saved states begin further models, and anchors begin a service again without all its calls; neither is believed unseen."""

from __future__ import annotations

import logging

import pytest
from safetensors.torch import load_file, save_file
from service_kit import metrics_of, sequence_datum

from rollout.service.kept import memory


async def train(client, steps):
    """Losses of so many steps, from the next call on."""
    losses = []
    for _ in range(steps):
        said = await client.answer(await client.backward([sequence_datum()]))
        losses.append(metrics_of(said)["loss:sum"])
        await client.answer(await client.step())
    return losses


async def test_a_model_that_begins_from_a_state_goes_on_as_the_other_would(service):
    client = (await service()).client()
    model = await client.begin()
    await train(client, 4)
    saved = (await client.answer(await client.save_state("four")))["path"]
    assert saved == f"tinker://{model}/weights/four"
    wanted = await train(client, 3)
    await client.begin_from(saved, 1, optimizer=True)
    assert await train(client, 3) == wanted
    await client.begin_from(saved, 2, optimizer=False)
    without = await train(client, 3)
    assert without[0] == wanted[0]
    assert without[1:] != wanted[1:]
    info = (await client.post("get_info", {"model_id": client.model}))[1]
    assert (info["lora_rank"], info["model_data"]["model_name"]) == (4, "tiny")


async def test_a_gradient_that_was_gathered_stays_with_the_model_it_is_of(service):
    client = (await service()).client()
    await client.begin()
    await train(client, 1)
    await client.answer(await client.backward([sequence_datum()]))
    saved = (await client.answer(await client.save_state("between")))["path"]
    assert (await client.answer(await client.step()))["metrics"]["num_gathered:sum"] == 1
    await client.begin_from(saved, 1, optimizer=True)
    assert "no gradient has been gathered" in (await client.answer(await client.step()))["error"]


async def test_models_from_states_are_there_again_after_a_kill_though_the_file_was_lost(
    service, tmp_path
):
    running = await service()
    client = running.client()
    await client.begin()
    await train(client, 2)
    saved = (await client.answer(await client.save_state("two")))["path"]
    await client.begin_from(saved, 1, optimizer=True)
    await train(client, 2)
    chain = (await client.state())["chain"]
    await running.stop()
    for file in (tmp_path / "states").iterdir():
        file.unlink()
    running = await service()
    client = running.follow(client)
    assert (await client.state())["chain"] == chain
    await running.stop()
    (file,) = (tmp_path / "states").iterdir()
    tensors = load_file(file)
    name = next(one for one in tensors if one.startswith("weight/"))
    tensors[name] += 1
    save_file(tensors, file)
    client = (await service()).follow(client)
    assert "it was changed; restore it from a copy" in (await client.state())["broken"]


async def test_a_state_is_loaded_into_a_model_that_there_is_as_into_a_new_one(service):
    running = await service()
    client = running.client()
    await client.begin()
    await train(client, 3)
    await client.answer(await client.save_state("three"))
    wanted = await train(client, 2)
    await client.answer(await client.backward([sequence_datum()]))
    loaded = await client.answer(await client.load_state("three", optimizer=True))
    assert loaded["type"] == "load_weights"
    assert loaded["path"].endswith("/weights/three")
    assert "no gradient has been gathered" in (await client.answer(await client.step()))["error"]
    assert await train(client, 2) == wanted
    at = client.seq + 1
    first = await client.answer(await client.load_state("three", optimizer=False))
    again = await client.load_state("three", optimizer=False, seq=at)
    assert await client.answer(again) == first
    status, said = await client.load_state("three", optimizer=True, seq=at)
    assert (status, "was another call" in said["detail"]) == (400, True)
    plain = await train(client, 2)
    assert plain[0] == wanted[0]
    assert plain[1] != wanted[1]


async def test_loads_that_do_not_fit_keep_their_place_and_change_nothing(service):
    running = await service()
    client, other = running.client(), running.client("two")
    await client.begin(rank=4)
    await train(client, 1)
    path = (await client.answer(await client.save_state("one")))["path"]
    chain = (await client.state())["chain"]
    await client.begin(number=1, rank=8)
    said = await client.answer(await client.load_state(path, optimizer=True))
    assert (
        "the state is of an adapter of rank 4 on Attention, Mlp, the model has an adapter of rank 8"
        in said["error"]
    )
    early = await client.load_state("later", optimizer=True)
    assert "there is no state" in (await client.answer(early))["error"]
    await client.answer(await client.save_state("later"))
    repeat = await client.load_state("later", optimizer=True, seq=2)  # refused then: refused now
    assert await client.answer(repeat) == await client.answer(early)
    said = await client.answer(
        await client.load_state("later", optimizer=True, weights_access_token="t")
    )
    assert "weights_access_token is not offered" in said["error"]
    await other.begin()
    said = await other.answer(await other.load_state(path, optimizer=True))
    assert "there is no state" in said["error"]
    client.model = path.split("/")[2]
    assert (await client.state())["chain"] == chain


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        (
            {"path": "tinker://nobody/weights/x"},
            404,
            "there is no state 'tinker://nobody/weights/x'",
        ),
        ({"weights_access_token": "t"}, 422, "weights_access_token is not offered"),
        ({"base_model": "other"}, 400, "the state is of tiny, not of 'other'"),
        ({"strict": True}, 400, "unknown field `strict`"),
    ],
)
async def test_a_state_that_cannot_be_begun_from_is_named(service, more, status, words):
    client = (await service()).client()
    await client.begin()
    saved = (await client.answer(await client.save_state("one")))["path"]
    ask = {"session_id": client.session, "model_seq_id": 1, "path": saved, "optimizer": True}
    got, said = await client.post("load_weights", ask | more)
    assert (got, words in said["detail"]) == (status, True), said
    again = await client.answer(await client.save_state("one"))
    assert "'one' names a state that this model was saved as before" in again["error"]


async def test_an_end_in_order_begins_again_without_the_calls(service, caplog):
    caplog.set_level(logging.INFO, "rollout.service")
    running = await service()
    client = running.client()
    await client.begin()
    await train(client, 3)
    await client.answer(await client.backward([sequence_datum()]))
    await client.answer(await client.save("kept"))
    state = await client.state()
    await running.stop(anchors=True)
    client = (await service()).follow(client)
    assert "calls=8 again=0" in caplog.text
    assert await client.state() == state
    assert (await client.answer(await client.step(seq=9)))["metrics"]["num_gathered:sum"] == 1
    assert "saved as before" in (await client.answer(await client.save("kept", seq=10)))["error"]


async def test_after_some_calls_a_kill_costs_those_behind_the_anchor(service, caplog, monkeypatch):
    monkeypatch.setattr(memory, "ANCHOR_CALLS", 4)
    caplog.set_level(logging.INFO, "rollout.service")
    running = await service()
    client = running.client()
    await client.begin()
    await train(client, 3)
    state = await client.state()
    running.desk._memory._anchored.clear()
    monkeypatch.setattr(running.desk._memory, "anchor_all", lambda busy: None)
    await running.stop(anchors=True)
    client = (await service()).follow(client)
    assert "calls=6 again=2" in caplog.text
    assert await client.state() == state


@pytest.mark.parametrize("spoil", ["weights", "names", "seq", "bytes"])
async def test_an_anchor_that_does_not_fit_is_not_believed(service, tmp_path, caplog, spoil):
    caplog.set_level(logging.INFO, "rollout.service")
    running = await service()
    client = running.client()
    await client.begin()
    await train(client, 2)
    state = await client.state()
    anchors = running.desk._keeper.anchors
    await running.stop(anchors=True)
    anchor = anchors.read(client.model)
    tensors = dict(anchor.tensors)
    if spoil == "weights":
        name = next(one for one in tensors if one.startswith("moment/") and one.endswith("exp_avg"))
        tensors[name] = tensors[name] * 1.001
    changed = type(anchor)(
        seq=3 if spoil == "seq" else anchor.seq,
        names=("sampler/x",) if spoil == "names" else anchor.names,
        tensors=tensors,
    )
    anchors.write(client.model, changed)
    if spoil == "bytes":
        (file,) = (tmp_path / "anchors").iterdir()
        file.write_bytes(file.read_bytes()[:-7])
    client = (await service()).follow(client)
    assert "calls=4 again=4" in caplog.text
    assert await client.state() == state


async def test_what_was_saved_is_described_to_its_owner_only(service):
    one = await service()
    client, other = one.client(), one.client("two")
    await client.begin(rank=3, train_mlp=False)
    state = await client.answer(await client.save_state("a"))
    weights = await client.answer(await client.save("a"))
    for path in (state["path"], weights["path"]):
        status, said = await client.post("weights_info", {"tinker_path": path})
        assert (status, said["base_model"], said["lora_rank"]) == (200, "tiny", 3)
        assert (said["train_attn"], said["train_mlp"], said["train_unembed"]) == (
            True,
            False,
            False,
        )
        assert (await other.post("weights_info", {"tinker_path": path}))[0] == 404
