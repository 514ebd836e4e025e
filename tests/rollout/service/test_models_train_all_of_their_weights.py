"""Models whose weights are all trained: each in a copy of the base, with everything that adapters have."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
import tinker
import torch
from reading_kit import change, rollout, told
from service_kit import TINY, logprobs_of, metrics_of, sequence_datum
from test_a_killed_service_comes_to_the_same_chain import NUM_CALLS, send, whole_loop

from rollout.client import connect
from rollout.errors import SpecError
from rollout.learner.model.numerics import runtime_identity
from rollout.learner.model.parallel import CPU
from rollout.runs.manifest import load_documents
from rollout.service.server import note_bases, serve_training
from rollout.service.settings import TrainingServiceSettings, settings_of_spec
from rollout_api.v1alpha1.run import RolloutRunSpec

WHOLE = ("tiny",)


@pytest.fixture
async def whole(service):
    """A service whose one base trains full weights."""
    return await service(full_weights=WHOLE)


async def train(client, steps):
    """Losses of so many steps."""
    losses = []
    for _ in range(steps):
        said = await client.answer(await client.backward([sequence_datum()]))
        losses.append(metrics_of(said)["loss:sum"])
        await client.answer(await client.step())
    return losses


async def kind_of(client):
    info = (await client.post("get_info", {"model_id": client.model}))[1]
    return info["is_lora"], info["lora_rank"]


async def test_it_learns_what_an_adapter_cannot_and_the_base_stays_as_it_was(whole, tiny_base):
    before = {name: tensor.clone() for name, tensor in tiny_base.weights.items()}
    client = whole.client()
    await client.begin()
    assert await kind_of(client) == (False, None)
    losses = await train(client, 50)
    assert losses[-1] < 0.1  # the embedding learns, too
    assert all(torch.equal(before[name], tensor) for name, tensor in tiny_base.weights.items())
    sampler = (await client.answer(await client.save()))["sampling_session_id"]
    drawn = await client.answer(await client.sample(sampler, params={"temperature": 0.0}))
    (sequence,) = drawn.sequences
    assert list(memoryview(sequence.tokens).cast("i")) == [7, 8, 9, 10]


async def test_a_client_without_an_adapter_in_mind_and_one_with_get_the_same_model(whole):
    client = whole.client()
    await client.begin()
    first, chain = await train(client, 2), (await client.state())["chain"]
    ask = {"session_id": client.session, "model_seq_id": 1, "base_model": "tiny"}
    status, said = await client.post("create_model", ask)
    assert status == 200, said
    client.model, client.seq = said["model_id"], 0
    assert (await train(client, 2), (await client.state())["chain"]) == (first, chain)


async def test_a_session_is_told_that_adapters_are_left_out(whole, service, tmp_path):
    client = whole.client()
    said = (await client.post("create_session", {"sdk_version": "0"}))[1]
    assert "all weights of models over tiny are trained" in said["warning_message"]
    both = await service(tmp_path / "both", full_weights=WHOLE, skip_unembed=True)
    said = (await both.client("two").post("create_session", {"sdk_version": "0"}))[1]
    assert "; " in said["warning_message"]


async def test_a_base_of_adapters_refuses_a_model_without_one_and_names_the_way(service):
    client = (await service()).client()
    await client.begin()
    ask = {"session_id": client.session, "model_seq_id": 1, "base_model": "tiny"}
    status, said = await client.post("create_model", ask)
    assert status == 400
    assert "--full-weights and the base's name" in said["detail"]


async def test_states_begin_and_fill_models_of_their_kind_only(whole, service, tmp_path):
    client = whole.client()
    await client.begin()
    await train(client, 2)
    path = (await client.answer(await client.save_state("two")))["path"]
    wanted = await train(client, 2)
    await client.answer(await client.load_state(path, optimizer=True))
    assert await train(client, 2) == wanted
    await client.begin_from(path, 1, optimizer=True)
    assert await kind_of(client) == (False, None)
    assert await train(client, 2) == wanted
    info = (await client.post("weights_info", {"tinker_path": path}))[1]
    assert (info["is_lora"], info["lora_rank"], info["train_unembed"]) == (False, None, True)
    run = (await client.get(f"training_runs/{client.model}"))[1]
    assert (run["is_lora"], run["lora_rank"]) == (False, None)
    await whole.stop()
    adapters = await service()  # the same book, now for adapters: what there is stays what it is
    client = adapters.follow(client)
    await client.begin(number=2)
    said = await client.answer(await client.load_state(path, optimizer=True))
    assert "the state is of full weights, the model has an adapter of rank 4" in said["error"]


async def test_kills_come_to_the_same_chain(service, tmp_path):
    calm = await service(tmp_path / "calm", full_weights=WHOLE)
    wanted = await whole_loop(calm.client())
    draw = random.Random(7)
    running = await service(tmp_path / "killed", full_weights=WHOLE)
    client = running.client()
    await client.begin()
    acknowledged = 0
    while acknowledged < NUM_CALLS:
        for _ in range(min(draw.randint(1, 4), NUM_CALLS - acknowledged)):
            if acknowledged == 12:  # what is loaded has been saved
                await client.answer((200, {"request_id": f"{client.model}#12"}))
            acknowledged += 1
            assert (await send(client, acknowledged))[0] == 200
        await asyncio.sleep(draw.random() * 0.03)
        await running.stop(anchors=draw.random() < 0.5)
        running = await service(tmp_path / "killed", full_weights=WHOLE)
        client = running.follow(client)
    await client.answer((200, {"request_id": f"{client.model}#{NUM_CALLS}"}))
    state = await client.state()
    assert (state["calls"], state["chain"]) == (NUM_CALLS, wanted)


async def test_memory_is_bounded_in_bytes_and_models_come_back(service, tiny_base):
    one = 16 * sum(tensor.numel() for tensor in tiny_base.weights.values())
    running = await service(full_weights=WHOLE, bytes_in_memory=2 * one)
    client = running.client()
    models = [await client.begin(number=number) for number in range(4)]
    assert len(running.desk._memory) == 2
    chains = set()
    for client.model in models:
        client.seq = 0
        await train(client, 2)
        chains.add((await client.state())["chain"])
        assert len(running.desk._memory) == 2
    assert len(chains) == 1  # full weights begin equal, and equal calls come to one chain


def loop_of_the_sdk(url, key):
    """What a program for adapters does, unchanged; losses, and how the model is described."""
    client = tinker.ServiceClient(base_url=url, api_key=key)
    model = client.create_lora_training_client("tiny", rank=8)
    model = model.result(60) if hasattr(model, "result") else model
    data = [
        tinker.types.Datum(
            model_input=tinker.types.ModelInput.from_ints([5, 6, 7, 8]),
            loss_fn_inputs={"target_tokens": [6, 7, 8, 9], "weights": [1.0] * 4},
        )
    ]
    losses = []
    for _ in range(20):
        backward = model.forward_backward(data, "cross_entropy")
        model.optim_step(tinker.types.AdamParams(learning_rate=1e-2)).result(60)
        losses.append(backward.result(60).metrics["loss:sum"])
    path = model.save_state("last").result(60).path
    again = client.create_training_client_from_state(path)
    again = again.result(60) if hasattr(again, "result") else again
    kinds = [one.get_info().is_lora for one in (model, again)]
    client.close("success").result(60)
    return losses, kinds


async def test_a_program_for_adapters_trains_all_weights_unchanged(whole, monkeypatch):
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    url = str(whole.http.make_url("")).rstrip("/")
    losses, kinds = await asyncio.to_thread(loop_of_the_sdk, url, whole.client().key)
    assert losses[-1] < losses[0] / 2
    assert kinds == [False, False]


async def test_our_client_asks_for_full_weights_by_name(whole):
    url, key = str(whole.http.make_url("")).rstrip("/"), whole.client().key

    def ask():
        with connect(url, key) as client:
            model = client.create_full_training_client("tiny").result()
            return model.get_info()

    info = await asyncio.to_thread(ask)
    assert (info.is_lora, info.lora_rank) == (False, None)


async def test_such_a_model_is_read_as_any_other(whole, tiny_base):
    note_bases(whole.book, (TINY,), {"tiny": tiny_base})
    client = whole.client()
    await client.begin()
    await train(client, 2)
    place = ("--service", str(whole.folder))
    assert "all weights" in rollout("runs", "show", client.model, *place)
    await whole.stop()
    here = msgspec.json.encode(runtime_identity(world_size=1, device=CPU)).decode()
    change(whole.folder / "calls.sqlite", "UPDATE book SET identity = ?", here)
    found = told("verify-resume", client.model, *place)
    assert (found["equal"], found["chain"]) == (True, client.chains[-1])
    out = whole.folder / "out"
    rollout("runs", "to-manifest", client.model, "--to", str(out), *place)
    (document,) = load_documents(out / "run.yaml")
    assert document.data["spec"]["model"].keys() == {"uri", "dtype", "chatTemplate"}


async def test_a_name_of_no_base_is_refused_before_anything_is_opened(tmp_path):
    settings = TrainingServiceSettings(
        bases=(TINY,), folder=tmp_path / "service", keys=tmp_path, full_weights=("tinny",)
    )
    with pytest.raises(SpecError, match="--full-weights tinny: no --train has this name"):
        await serve_training(settings, lambda *_: None)
    assert not settings.folder.exists()


def test_a_manifest_says_it_for_its_one_base(tmp_path):
    spec = RolloutRunSpec.model_validate(
        {"model": {"uri": "rollout://tiny-adder"}, "serve": {"fullWeights": True, "maxModels": 3}}
    )
    settings = settings_of_spec(spec, tmp_path, tmp_path)
    assert settings.full_weights == ("rollout://tiny-adder",)
    assert settings.models_max == 3


async def test_one_model_too_many_is_refused_and_the_others_go_on(service):
    client = (await service(models_max=2)).client()
    models = [await client.begin(number=number) for number in range(2)]
    with pytest.raises(AssertionError, match="this service has 2 models, the most there may be"):
        await client.begin(number=2)
    client.model, client.seq = models[0], 0
    await train(client, 1)


async def test_a_refused_call_changes_no_weight(whole):
    client = whole.client()
    await client.begin()
    said = await client.answer(await client.backward([sequence_datum()], forward_only=True))
    first = logprobs_of(said)
    await client.answer(await client.backward([sequence_datum(weights=[1e38] * 6)]))
    await client.answer(await client.step())
    again = await client.answer(await client.backward([sequence_datum()], forward_only=True))
    assert (logprobs_of(again) == first).all()
