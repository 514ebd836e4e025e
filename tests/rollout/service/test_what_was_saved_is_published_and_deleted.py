"""Saved weights and states are published, given a time and deleted; each is a fact, and bytes go when nothing needs them."""

from __future__ import annotations

import asyncio
import time

import pytest
from service_kit import sequence_datum

from rollout.errors import StoreError
from rollout.service.kept import tensors
from rollout.service.registry import SavedChange


async def step(client):
    await client.answer(await client.backward([sequence_datum()]))
    await client.answer(await client.step())


async def saved_pair(client):
    """After a step: the paths of a state and of weights."""
    await step(client)
    state = (await client.answer(await client.save_state("a")))["path"]
    return state, (await client.answer(await client.save("a")))["path"]


async def listed(client):
    return {one["tinker_path"]: one for one in (await client.get("checkpoints"))[1]["checkpoints"]}


def files(folder, kind):
    return {one.name for one in (folder / kind).iterdir()} if (folder / kind).is_dir() else set()


def num_changes(running):
    return len(running.desk.registry.all(SavedChange))


async def begin_other(client):
    await client.begin()
    await client.answer(await client.backward([sequence_datum()]))


async def test_what_is_deleted_is_there_for_nobody_and_its_bytes_are_gone(service, tmp_path):
    running = await service()
    client = running.client()
    await client.begin()
    state, weights = await saved_pair(client)
    for path in (state, weights):
        for _ in range(2):
            assert await client.change(path, "DELETE") == (200, {})
    assert await listed(client) == {}
    assert files(tmp_path, "states") == files(tmp_path, "weights") == set()
    assert num_changes(running) == 2
    status, said = await client.sampler(7, model_path=weights)
    assert (status, said["detail"]) == (
        404,
        f"{weights} was deleted; save under another name, or load another",
    )
    assert (await client.post("weights_info", {"tinker_path": state}))[0] == 404
    told = await client.answer(await client.load_state("a", optimizer=True))
    assert f"{state} was deleted" in told["error"]
    told = await client.answer(await client.save_state("a"))
    assert "'a' names a state that this model was saved as before" in told["error"]
    for change in (("POST", "/publish"), ("PUT", "/ttl", {"ttl_seconds": None})):
        assert (await client.change(state, *change))[0] == 404


async def test_who_is_killed_between_the_fact_and_the_bytes_takes_them_away_at_the_next_start(
    service, tmp_path, monkeypatch
):
    running = await service()
    client = running.client()
    await client.begin()
    state, weights = await saved_pair(client)
    chain = (await client.state())["chain"]
    monkeypatch.setattr(tensors.SavedTensors, "take_away", lambda self, digest: None)
    await client.change(weights, "DELETE")
    monkeypatch.undo()
    monkeypatch.setattr(tensors.SavedTensors, "empty", lambda self: None)
    await client.change(state, "DELETE")
    monkeypatch.undo()
    assert {one[:6] for one in files(tmp_path, "states")} == {".gone-"}
    assert len(files(tmp_path, "weights")) == 1
    await running.stop()
    client = (await service()).follow(client)
    assert files(tmp_path, "states") == files(tmp_path, "weights") == set()
    assert (await client.state())["chain"] == chain
    assert await listed(client) == {}


async def test_a_fact_that_was_not_written_deletes_nothing(service, tmp_path, monkeypatch):
    running = await service()
    client = running.client()
    await client.begin()
    state, _ = await saved_pair(client)

    def full(thing):
        raise StoreError("no room")

    monkeypatch.setattr(running.book, "put", full)
    assert (await client.change(state, "DELETE"))[0] == 500
    monkeypatch.undo()
    assert state in await listed(client)
    assert len(files(tmp_path, "states")) == 1


@pytest.mark.parametrize("anchors", [False, True])
async def test_a_model_and_a_call_that_need_a_deleted_state_come_to_the_same_chain_again(
    service, tmp_path, anchors
):
    running = await service()
    client = running.client()
    first = await client.begin()
    state, _ = await saved_pair(client)
    await step(client)
    second = (await client.answer(await client.save_state("b")))["path"]
    await client.begin(number=1)
    await step(client)
    await client.answer(await client.load_state(state, optimizer=True))
    await step(client)
    third = await client.begin_from(second, 2, optimizer=True)
    await step(client)
    for path in (state, second):
        assert (await client.change(path, "DELETE"))[0] == 200
    assert len(files(tmp_path, "states")) == 2
    chains = {}
    for model in (first, first.replace(":0", ":1"), third):
        client.model = model
        chains[model] = (await client.state())["chain"]
    await running.stop(anchors=anchors)
    running = await service()
    client = running.follow(client)
    for model, chain in chains.items():
        client.model = model
        assert (await client.state())["chain"] == chain
    assert len(files(tmp_path, "states")) == 2
    await step_on(client, third)


async def step_on(client, model):
    client.model = model
    client.seq = (await client.state())["calls"]
    await step(client)


async def test_a_repeat_of_what_was_begun_from_it_is_what_it_was(service):
    running = await service()
    client = running.client()
    await client.begin()
    state, weights = await saved_pair(client)
    ask = {"session_id": client.session, "model_seq_id": 1, "path": state, "optimizer": True}
    begun = await client.post("load_weights", ask)
    loaded = await client.load_state(state, optimizer=True)
    sampler = await client.sampler(3, model_path=weights)
    for path in (state, weights):
        await client.change(path, "DELETE")
    assert await client.post("load_weights", ask) == begun
    assert await client.load_state(state, optimizer=True, seq=client.seq) == loaded
    assert await client.sampler(3, model_path=weights) == sampler
    assert (await client.post("load_weights", {**ask, "model_seq_id": 2}))[0] == 404


async def test_a_sampler_draws_on_from_deleted_weights_until_its_session_finishes(
    service, tmp_path
):
    running = await service()
    client = running.client()
    await client.begin()
    _, weights = await saved_pair(client)
    name = (await client.sampler(0, model_path=weights))[1]["sampling_session_id"]
    waiting = [await client.sample(name, seq) for seq in range(4)]
    await client.change(weights, "DELETE")
    for one in waiting:
        assert len((await client.answer(one)).sequences) == 1
    assert len(files(tmp_path, "weights")) == 1
    await client.answer(await client.sample(name, 4))
    await client.post(f"sessions/{client.session}/finish", {"status": "success"})
    assert files(tmp_path, "weights") == set()
    status, said = await client.sample(name, 5)
    assert (status, "the weights of sampler" in said["detail"]) == (404, True)
    assert await client.answer(await client.sample(name, 4)) is not None


async def test_bytes_stay_while_another_name_has_them(service, tmp_path):
    running = await service()
    client = running.client()
    await client.begin()
    _, weights = await saved_pair(client)
    other = (await client.answer(await client.save("other")))["path"]
    await client.change(weights, "DELETE")
    assert len(files(tmp_path, "weights")) == 1
    name = (await client.sampler(0, model_path=other))[1]["sampling_session_id"]
    assert len((await client.answer(await client.sample(name))).sequences) == 1
    await client.change(other, "DELETE")
    await client.post(f"sessions/{client.session}/finish", {"status": "success"})
    assert files(tmp_path, "weights") == set()


async def test_the_base_can_be_sampled_when_weights_that_equal_it_were_deleted(service, tmp_path):
    running = await service()
    client = running.client()
    await client.begin()
    weights = (await client.answer(await client.save("untrained")))["path"]
    await client.change(weights, "DELETE")
    name = (await client.sampler(0, base_model="tiny"))[1]["sampling_session_id"]
    assert len((await client.answer(await client.sample(name))).sequences) == 1


async def test_saves_and_deletes_at_once_never_leave_a_name_without_bytes(service, tmp_path):
    running = await service()
    client = running.client()
    await client.begin()
    paths = [(await client.answer(await client.save("0")))["path"]]
    for i in range(1, 12):
        said = await client.save(str(i))
        deleted, answer = await asyncio.gather(
            client.change(paths[-1], "DELETE"), client.answer(said)
        )
        assert deleted[0] == 200
        paths.append(answer["path"])
        assert len(files(tmp_path, "weights")) == 1


async def test_published_means_that_others_read_it_and_nothing_else(service):
    running = await service()
    one, two = running.client("one"), running.client("two")
    model = await one.begin()
    state, weights = await saved_pair(one)
    await begin_other(two)
    for path in (state, weights):
        assert (await two.post("weights_info", {"tinker_path": path}))[0] == 404
        for _ in range(2):
            assert await one.change(path, "POST", "/publish") == (200, {})
        assert (await two.post("weights_info", {"tinker_path": path}))[0] == 200
        assert (await listed(one))[path]["public"]
    assert num_changes(running) == 2
    name = (await two.sampler(0, model_path=weights))[1]["sampling_session_id"]
    assert len((await two.answer(await two.sample(name))).sequences) == 1
    loaded = await two.answer(await two.load_state(state, optimizer=True))
    assert loaded["path"] == state
    begun = await two.begin_from(state, 1, optimizer=False)
    await step(two)
    assert await listed(two) == {}
    assert (await one.get(f"samplers/{name}"))[0] == 404
    assert (await one.get(f"training_runs/{begun}"))[0] == 404
    for path in (
        f"training_runs/{model}",
        f"training_runs/{model}/checkpoints",
        f"rollout/models/{model}",
        f"sessions/{one.session}",
    ):
        assert (await two.get(path))[0] == 404
    for change in (("DELETE",), ("DELETE", "/publish"), ("PUT", "/ttl", {"ttl_seconds": 3600})):
        status, said = await two.change(state, *change)
        assert (status, "there is no checkpoint" in said["detail"]) == (404, True)
    for _ in range(2):
        assert await one.change(weights, "DELETE", "/publish") == (200, {})
    assert (await two.sampler(1, model_path=weights))[0] == 404
    assert len((await two.answer(await two.sample(name, 1))).sequences) == 1


async def test_published_and_then_deleted_is_unknown_to_others_who_go_on(service, tmp_path):
    running = await service()
    one, two = running.client("one"), running.client("two")
    await one.begin()
    state, weights = await saved_pair(one)
    for path in (state, weights):
        await one.change(path, "POST", "/publish")
    await begin_other(two)
    name = (await two.sampler(0, model_path=weights))[1]["sampling_session_id"]
    begun = await two.begin_from(state, 1, optimizer=True)
    await step(two)
    chain = (await two.state())["chain"]
    for path in (state, weights):
        await one.change(path, "DELETE")
        status, said = await two.post("weights_info", {"tinker_path": path})
        assert (status, "was deleted" in said["detail"]) == (404, False)
    assert len((await two.answer(await two.sample(name))).sequences) == 1
    await running.stop()
    running = await service()
    two = running.follow(two)
    assert (two.model, (await two.state())["chain"]) == (begun, chain)
    assert len((await two.answer(await two.sample(name, 1))).sequences) == 1


NOTHING = (
    "training_runs/{model}/checkpoints/weights/nothing",
    "training_runs/{model}/checkpoints/optimizers/a",
    "training_runs/nobody/checkpoints/weights/a",
    "training_runs/{model}/checkpoints/weights/..%2f..%2fcalls.sqlite",
    "training_runs/..%2f../checkpoints/weights/a",
    "training_runs/{model}/checkpoints/weights/%00",
    "training_runs/{model}%2Fweights/checkpoints/a/b",
)


async def test_a_name_of_nothing_deletes_nothing(service, tmp_path):
    running = await service()
    client = running.client()
    model = await client.begin()
    paths = await saved_pair(client)
    before = {one.name for one in tmp_path.rglob("*")}
    for path in NOTHING:
        status, said = await client.send("DELETE", path.format(model=model))
        assert (status, "there is no checkpoint" in said["detail"]) == (404, True), path
    assert set(await listed(client)) == set(paths)
    assert {one.name for one in tmp_path.rglob("*")} >= before
    assert num_changes(running) == 0


async def test_what_expires_is_gone_when_its_time_has_come_and_not_before(service, tmp_path):
    running = await service()
    client = running.client()
    await client.begin()
    await step(client)
    begun = time.time()
    state = await client.answer(await client.save_state("a", ttl_seconds=3600))
    weights = await client.answer(await client.save("a", ttl_seconds=7200))
    later = await client.answer(await client.save_state("b"))
    assert await client.change(later["path"], "PUT", "/ttl", {"ttl_seconds": 9000}) == (200, {})
    shown = await listed(client)
    assert all(one["expires_at"] for one in shown.values())
    chain = (await client.state())["chain"]
    await running.desk.shelf.tidy(begun + 3599)
    assert len(await listed(client)) == 3
    await running.desk.shelf.tidy(time.time() + 3601)
    assert set(await listed(client)) == {weights["path"], later["path"]}
    status, said = await client.post("weights_info", {"tinker_path": state["path"]})
    assert (status, "has expired" in said["detail"]) == (404, True)
    assert await client.change(state["path"], "DELETE") == (200, {})
    assert await client.change(later["path"], "PUT", "/ttl", {"ttl_seconds": None}) == (200, {})
    await running.stop()
    running = await service()
    client = running.follow(client)
    assert (await client.state())["chain"] == chain
    await running.desk.shelf.tidy(time.time() + 10**9)
    assert set(await listed(client)) == {later["path"]}
    assert (await listed(client))[later["path"]]["expires_at"] is None
    assert files(tmp_path, "weights") == set()


async def test_what_expired_while_no_service_ran_is_gone_when_one_does(service, monkeypatch):
    running = await service()
    client = running.client()
    await client.begin()
    await client.answer(await client.save_state("a", ttl_seconds=3600))
    await running.stop()
    now = time.time() + 3601
    monkeypatch.setattr("rollout.service.desk.time.time", lambda: now)
    running = await service()
    client = running.follow(client)
    assert await listed(client) == {}


async def test_an_expiry_is_seen_to_by_the_service_itself(service):
    running = await service()
    client = running.client()
    await client.begin()
    state = (await client.answer(await client.save_state("a")))["path"]
    await running.desk.shelf.set_expiry(state, "one", time.time() + 0.05)
    async with asyncio.timeout(60):
        while await listed(client):
            await asyncio.sleep(0)


async def test_a_time_that_is_none_is_named(service):
    running = await service()
    client = running.client()
    await client.begin()
    state, _ = await saved_pair(client)
    for ttl in (0, -1, 3599, 10**9, 1.5, "a", True):
        status, said = await client.change(state, "PUT", "/ttl", {"ttl_seconds": ttl})
        assert (status, "ttl_seconds" in said["detail"]) == (400, True), ttl
        refused = await client.answer(await client.save_state("b", ttl_seconds=ttl))
        assert "ttl_seconds" in refused["error"]
    assert (await client.change(state, "PUT", "/ttl", {}))[0] == 400
    assert (await listed(client))[state]["expires_at"] is None


async def test_a_time_is_part_of_the_call_and_no_time_leaves_it_as_it_was(service):
    running = await service()
    client = running.client()
    await client.begin()
    plain = (await client.answer(await client.save_state("a")), client.chains[-1])
    for number, more in ((1, {}), (2, {"ttl_seconds": 3600})):
        await client.begin(number=number)
        said = (await client.answer(await client.save_state("a", **more)), client.chains[-1])
        assert (said[1] == plain[1]) == (not more)
    nameless = await client.answer(await client.save(ttl_seconds=3600))
    assert "weights without a name that expire" in nameless["error"]


async def test_what_is_deleted_makes_room_in_its_keys_bytes(service):
    running = await service()
    client = running.client("one")
    await client.begin()
    _, weights = await saved_pair(client)
    size = (await listed(client))[weights]["size_bytes"]
    bounded = running.client("two", training_bytes=size * 3 // 2)
    await bounded.begin(seed=2)
    await step(bounded)
    first = (await bounded.answer(await bounded.save("a")))["path"]
    await step(bounded)
    assert "training_bytes" in (await bounded.answer(await bounded.save("b")))["error"]
    await bounded.change(first, "DELETE")
    assert "path" in await bounded.answer(await bounded.save("b"))
