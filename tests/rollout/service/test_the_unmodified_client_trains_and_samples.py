"""``rollout serve --train`` and the client from the package index, as it is: it learns, samples, and outlives kills of the service."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import pytest
import tinker
import torch
from serve_kit import ServedTraining
from tinker import types

pytestmark = pytest.mark.process

SEQUENCE = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
PROMPT = types.ModelInput.from_ints(SEQUENCE[:3])
STEPS = 12


def datum(tokens, **inputs):
    inputs = inputs or {"weights": [1.0] * (len(tokens) - 1)}
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], **inputs},
    )


@pytest.fixture(scope="module")
def served():
    with tempfile.TemporaryDirectory() as home:
        found = ServedTraining(home=Path(home))
        found.start()
        yield found
        if found.process.poll() is None:
            found.kill()


@pytest.fixture(scope="module")
def client(served, no_telemetry):
    found = tinker.ServiceClient(base_url=served.url, api_key=served.key)
    yield found
    found.close("success").result(60)


def made(client):
    """A client that was asked for: some versions answer with a future of it, some with it."""
    return client.result(60) if hasattr(client, "result") else client


def new_model(client, seed=3, rank=4):
    asked = {"base_model": "tiny", "rank": rank, "seed": seed, "train_unembed": False}
    return made(client.create_lora_training_client(**asked))


def train(model, steps):
    """Losses, and the heads of the chain after each step."""
    losses, heads = [], []
    for _ in range(steps):
        backward = model.forward_backward([datum(SEQUENCE)], "cross_entropy")
        stepped = model.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(backward.result(120).metrics["loss:sum"])
        heads.append(stepped.result(120).metrics["rollout_chain_head:unique"])
    return losses, heads


def test_what_is_served_is_said(client):
    (model,) = client.get_server_capabilities().supported_models
    assert (model.model_name, model.max_context_length, model.trainable) == ("tiny", 4096, True)
    info = new_model(client).get_info()
    assert (info.model_data.model_name, info.is_lora, info.lora_rank) == ("tiny", True, 4)
    assert Path(info.model_data.tokenizer_id, "tokenizer.json").exists()


def test_a_loop_of_the_clients_learns_and_samples_what_it_learned(client):
    model = new_model(client, rank=16)
    losses, _ = train(model, 60)
    assert losses[-1] < losses[0] - 4  # what is left is the frozen embedding's
    sampler = made(model.save_weights_and_get_sampling_client())
    greedy = types.SamplingParams(max_tokens=7, temperature=0)
    (drawn,) = sampler.sample(PROMPT, 1, greedy).result(60).sequences
    assert drawn.tokens == SEQUENCE[3:]
    assert (drawn.stop_reason, len(drawn.logprobs)) == ("length", 7)
    path = model.save_weights_for_sampler("final").result(60).path
    again = made(client.create_sampling_client(model_path=path))
    first, *scored = again.compute_logprobs(types.ModelInput.from_ints(SEQUENCE)).result(60)
    assert first is None
    assert sum(scored) == pytest.approx(-losses[-1], abs=1)
    several = again.sample(PROMPT, 4, types.SamplingParams(max_tokens=5)).result(60).sequences
    assert len({one.sequence_id for one in several}) == 4
    base = made(client.create_sampling_client(base_model="tiny"))
    assert base.sample(PROMPT, 1, greedy).result(60).sequences[0].tokens != SEQUENCE[3:]


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro"])
def test_what_was_rewarded_is_sampled_more_often(client, loss):
    model = new_model(client, seed=5)
    sampler = made(model.save_weights_and_get_sampling_client())
    one_token = types.SamplingParams(max_tokens=1, seed=3)  # other draws gain as little as 0.6
    drawn = sampler.sample(PROMPT, 64, one_token).result(60).sequences
    advantages = [1.0 if one.tokens[0] < 130 else -1.0 for one in drawn]
    data = [
        datum(
            [*SEQUENCE[:3], *one.tokens],
            logprobs=[0.0, 0.0, *one.logprobs],
            advantages=[0.0, 0.0, advantage],
        )
        for one, advantage in zip(drawn, advantages, strict=True)
    ]

    def objective(said):
        last = [out["logprobs"].data[-1] for out in said.result(60).loss_fn_outputs]
        return sum(a * logprob for a, logprob in zip(advantages, last, strict=True))

    before = objective(model.forward(data, loss))
    for _ in range(4):
        model.forward_backward(data, loss).result(60)
        model.optim_step(types.AdamParams(learning_rate=3e-3)).result(60)
    assert objective(model.forward(data, loss)) > before + 1


def test_a_loss_of_the_clients_own_is_computed_where_it_is(client):
    model, plain = new_model(client, seed=9), new_model(client, seed=9)

    def mine(data, logprobs):
        return -torch.cat(logprobs).sum(), {"mine": 1.0}

    said = model.forward_backward_custom([datum(SEQUENCE)], mine).result(60)
    assert said.metrics["mine"] == 1.0
    own = model.optim_step(types.AdamParams()).result(60)
    plain.forward_backward([datum(SEQUENCE)], "cross_entropy").result(60)
    theirs = plain.optim_step(types.AdamParams()).result(60)
    assert own.metrics["gradient_norm:max"] == pytest.approx(theirs.metrics["gradient_norm:max"])


def test_a_loop_goes_on_from_a_state_that_was_saved(client):
    model = new_model(client, seed=6)
    train(model, 3)
    path = model.save_state("three").result(60).path
    wanted, _ = train(model, 2)
    again = made(client.create_training_client_from_state_with_optimizer(path))
    assert again.get_info().lora_rank == 4
    assert train(again, 2)[0] == wanted


def test_a_state_is_loaded_into_a_model_that_there_is(client):
    model = new_model(client, seed=6)
    train(model, 2)
    path = model.save_state("two").result(60).path
    wanted, _ = train(model, 2)
    assert model.load_state_with_optimizer(path).result(60).path == path
    assert train(model, 2)[0] == wanted
    model.load_state(path).result(60)
    without, _ = train(model, 2)
    assert without[0] == wanted[0]
    assert without[1] != wanted[1]


def test_refusals_reach_the_client_as_its_own_errors(client):
    model = new_model(client)
    with pytest.raises(tinker.RequestFailedError, match="expected 9 values, one for each token"):
        model.forward_backward([datum(SEQUENCE, weights=[1.0])], "cross_entropy").result(60)
    with pytest.raises(tinker.RequestFailedError, match="ttl_seconds: expected 3600"):
        model.save_state("x", ttl_seconds=60).result(60)
    with pytest.raises(tinker.RequestFailedError, match="save_weights_external is not offered"):
        model.save_weights_external("x").result(60)
    with pytest.raises(tinker.UnprocessableEntityError, match="unembedding is not offered"):
        made(client.create_lora_training_client(base_model="tiny", rank=4))
    with pytest.raises(tinker.UnprocessableEntityError, match="there are tiny"):
        made(client.create_lora_training_client("large", train_unembed=False))
    train(model, 1)  # what follows in the model's order goes on


def test_what_was_saved_is_published_given_a_time_and_deleted(client, served):
    model = new_model(client)
    state = model.save_state("kept", ttl_seconds=7200).result(60).path
    weights = model.save_weights_for_sampler("kept", ttl_seconds=7200).result(60).path
    rest = tinker.RestClient(base_url=served.url, api_key=served.key)

    def shown():
        found = rest.list_checkpoints(model.get_info().model_id).result(60).checkpoints
        return [(one.tinker_path, one.public, one.expires_at is None) for one in found]

    assert shown() == [(weights, False, False), (state, False, False)]
    assert all(one.size_bytes for one in rest.list_user_checkpoints().result(60).checkpoints)
    for _ in range(2):
        rest.publish_checkpoint_from_tinker_path(state).result(60)
        rest.set_checkpoint_ttl_from_tinker_path(weights, None).result(60)
    assert shown() == [(weights, False, True), (state, True, False)]
    rest.unpublish_checkpoint_from_tinker_path(state).result(60)
    assert shown()[1] == (state, False, False)
    with pytest.raises(tinker.BadRequestError, match="ttl_seconds: expected 3600"):
        rest.set_checkpoint_ttl_from_tinker_path(state, 5).result(60)
    again = made(client.create_training_client_from_state(state))
    for _ in range(2):
        rest.delete_checkpoint_from_tinker_path(state).result(60)
        rest.delete_checkpoint(model.get_info().model_id, "sampler_weights/kept").result(60)
    assert shown() == []
    with pytest.raises(tinker.NotFoundError, match="was deleted"):
        made(client.create_training_client_from_state(state))
    train(again, 1)


def test_a_client_newer_than_tested_is_told_in_its_log_and_served(
    served, client, monkeypatch, caplog
):
    monkeypatch.setattr("tinker.lib.internal_client_holder.tinker_sdk_version", "0.99.1")
    for _ in range(2):
        newer = tinker.ServiceClient(base_url=served.url, api_key=served.key)
        train(new_model(newer), 1)
        newer.close("success").result(60)
    words = "tinker 0.99.1 is newer than 0.38.0, with which this service was tested"
    assert sum(words in one.getMessage() for one in caplog.records) == 2
    assert (served.home / "notes.txt").read_text().count(words) == 1


def test_data_in_many_chunks_is_one_gradient(client):
    model, whole = new_model(client, seed=4), new_model(client, seed=4)
    draw = torch.Generator().manual_seed(1)
    data = [datum(torch.randint(0, 250, (9,), generator=draw).tolist()) for _ in range(1030)]
    said = model.forward_backward(data, "cross_entropy")  # of which the client sends 1024 at a time
    parts = model.optim_step(types.AdamParams()).result(120)
    assert len(said.result(60).loss_fn_outputs) == 1030
    assert parts.metrics["num_gathered:sum"] == 2
    for some in (data[:500], data[500:]):
        whole.forward_backward(some, "cross_entropy").result(60)
    one = whole.optim_step(types.AdamParams()).result(60)
    norms = [s.metrics["gradient_norm:max"] for s in (parts, one)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def memory_mib(process):
    """The most that a process has had."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (found,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return found / 1024


@pytest.mark.slow
def test_a_million_tokens_in_one_call_are_one_gradient_in_bounded_memory(served, client):
    model = new_model(client)
    rows = torch.randint(0, 250, (1000, 1001), generator=torch.Generator().manual_seed(1)).tolist()
    model.forward_backward([datum(row) for row in rows[:8]], "cross_entropy").result(300)
    model.optim_step(types.AdamParams(learning_rate=0.0)).result(60)
    before = memory_mib(served.process)
    said = model.forward_backward([datum(row) for row in rows], "cross_entropy").result(600)
    assert len(said.loss_fn_outputs) == 1000
    assert memory_mib(served.process) - before < 400
    with pytest.raises(tinker.RequestFailedError, match=r"expected 1 to 4096 tokens.*got 1000000"):
        model.forward_backward([datum([5] * 1_000_001)], "cross_entropy").result(300)
    parts = model.optim_step(types.AdamParams()).result(120).metrics["num_gathered:sum"]
    assert parts == 4  # of which the client sends five million bytes at a time


@pytest.mark.slow
def test_a_loop_goes_on_through_kills_of_the_service_and_ends_at_the_same_chain(served, client):
    _, calm = train(new_model(client, seed=8), STEPS)
    model, heads = new_model(client, seed=8), []
    loop = threading.Thread(target=lambda: heads.extend(train(model, STEPS)[1]))
    loop.start()
    for pause in (0.05, 0.1, 0.15, 0.2):
        time.sleep(pause)
        served.kill()
        served.start()
    loop.join(300)
    assert heads == calm


@pytest.mark.slow
def test_ctrl_c_ends_it_and_nothing_is_lost(served, client):
    model = new_model(client, seed=8)
    _, heads = train(model, 2)
    assert served.interrupt() == 0
    served.start()
    _, more = train(model, 2)
    assert len({*heads, *more}) == 4
