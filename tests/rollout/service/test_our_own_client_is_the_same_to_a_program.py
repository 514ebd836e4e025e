"""``rollout.client`` in place of ``tinker``: the same program, the same calls, the same chain; and answers that get lost."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import timedelta

import numpy as np
import pytest
import tinker
import torch
from losing_proxy import losing_proxy

import rollout
import rollout.client
from rollout.errors import SpecError

SEQUENCE = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


@pytest.fixture
async def place(service, monkeypatch):
    """Address and key of a service in this loop; clients are blocking, and run in threads."""
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    one = await service()
    return str(one.http.make_url("")).rstrip("/"), one.client().key


async def in_thread(work, *words):
    async with asyncio.timeout(120):
        return await asyncio.to_thread(work, *words)


def datum(library, tokens=SEQUENCE, **inputs):
    inputs = inputs or {"weights": [1.0] * (len(tokens) - 1)}
    return library.types.Datum(
        model_input=library.types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], **inputs},
    )


def new_model(client, seed=3):
    return client.create_lora_training_client(
        "tiny", rank=4, seed=seed, train_unembed=False
    ).result()


def program(library, url, key):
    """A loop that uses most of what there is; what it has seen, none of which depends on the session."""
    client = library.ServiceClient(base_url=url, api_key=key)
    model = new_model(client)
    many = [datum(library, SEQUENCE[i % 3 :]) for i in range(1030)]
    seen = []
    for data in ([datum(library)], many):
        backward = model.forward_backward(data, "cross_entropy")
        stepped = model.optim_step(library.AdamParams(learning_rate=1e-2, grad_clip_norm=1.0))
        seen += [backward.result().metrics, stepped.result().metrics]
    seen.append(
        model.forward([datum(library)], "cross_entropy")
        .result()
        .loss_fn_outputs[0]["logprobs"]
        .data
    )
    state = model.save_state("two").result().path
    model.save_weights_for_sampler("weights").result()
    sampler = model.save_weights_and_get_sampling_client().result()
    prompt = library.ModelInput.from_ints(SEQUENCE[:3])
    drawn = sampler.sample(prompt, 2, library.SamplingParams(max_tokens=4, seed=7)).result()
    seen += [(one.tokens, one.logprobs, one.stop_reason) for one in drawn.sequences]
    seen.append(sampler.compute_logprobs(library.ModelInput.from_ints(SEQUENCE)).result())
    ppo = datum(library, logprobs=[-5.0] * 9, advantages=[1.0] * 9)
    clipped = model.forward_backward([ppo], "ppo", {"clip_high_threshold": 1.5}).result()
    again = client.create_training_client_from_state_with_optimizer(state).result()
    seen += [clipped.metrics, again.get_info().lora_rank]
    client.close("success").result()
    return seen


async def test_a_program_that_changes_its_import_line_comes_to_the_same_chain(place):
    theirs = await in_thread(program, tinker, *place)
    ours = await in_thread(program, rollout.client, *place)
    assert len(theirs) == 10
    assert ours == [
        pytest.approx(one, nan_ok=True) if isinstance(one, list) else one for one in theirs
    ]


def scored(library, url, key):
    """What a sampler says beside completions."""
    client = library.ServiceClient(base_url=url, api_key=key)
    sampler = client.create_sampling_client(base_model="tiny").result()
    prompt = library.ModelInput.from_ints(SEQUENCE)
    ids = np.array([[i, -1 if i % 2 else 7] for i in range(len(SEQUENCE) - 1)])
    said = sampler.sample(
        prompt,
        2,
        library.SamplingParams(max_tokens=3, seed=5),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
        topk_sample_logprobs=2,
        target_prompt_logprobs=library.TensorData.from_numpy(ids),
        prompt_logprobs_last_n=4,
    ).result()
    last = sampler.compute_logprobs(prompt, 2).result()
    plain = sampler.sample(prompt, 1, library.SamplingParams(max_tokens=1, seed=5)).result()
    client.close("success").result()
    return [
        said.topk_prompt_logprobs,
        said.prompt_logprobs,
        [(one.tokens, one.topk_logprobs) for one in said.sequences],
        said.target_prompt_logprobs.tolist(),
        last,
        (
            plain.topk_prompt_logprobs,
            plain.target_prompt_logprobs,
            plain.sequences[0].topk_logprobs,
        ),
    ]


async def test_what_is_scored_beside_completions_is_the_same(place):
    theirs = await in_thread(scored, tinker, *place)
    assert await in_thread(scored, rollout.client, *place) == theirs
    assert [one is None for one in theirs[4]] == [True] * 8 + [False] * 2


def kept(library, url, key, name):
    """What a REST client says of a model and of what it was saved as; ids are told by what they are of."""
    client = library.ServiceClient(base_url=url, api_key=key)
    model = new_model(client)
    paths = [model.save_state(name, ttl_seconds=7200).result().path]
    paths.append(model.save_weights_for_sampler(name).result().path)
    run = model.get_info().model_id
    sampler = client.create_sampling_client(model_path=paths[1]).result()
    rest = client.create_rest_client()

    def shown(found):
        return [
            (
                one.checkpoint_id,
                one.checkpoint_type,
                paths.index(one.tinker_path),
                one.size_bytes,
                one.public,
                one.expires_at is None or one.expires_at - one.time > timedelta(minutes=119),
                one.time.tzinfo,
            )
            for one in found.checkpoints
        ]

    seen = [shown(rest.list_checkpoints(run).result())]
    rest.publish_checkpoint_from_tinker_path(paths[0]).result()
    rest.set_checkpoint_ttl_from_tinker_path(paths[0], None).result()
    rest.set_checkpoint_ttl_from_tinker_path(paths[1], 3600).result()
    found = rest.list_user_checkpoints(limit=2).result()
    seen += [shown(found), (found.cursor.limit, found.cursor.offset)]
    told = rest.get_training_run_by_tinker_path(paths[0]).result()
    seen.append((told.base_model, told.is_lora, told.lora_rank, told.corrupted, told.model_owner))
    seen.append(
        [one.tinker_path in paths for one in (told.last_checkpoint, told.last_sampler_checkpoint)]
    )
    (newest,) = rest.list_training_runs(limit=1).result().training_runs
    session = rest.list_sessions().result().sessions[0]
    seen.append((newest.training_run_id == run, run.startswith(session)))
    seen.append(rest.get_session(session).result().training_run_ids == [run])
    of = rest.get_sampler(
        sampler.sampler_id if library is rollout.client else sampler._sampling_session_id
    ).result()
    seen.append((of.base_model, of.model_path == paths[1]))
    info = rest.get_weights_info_by_tinker_path(paths[1]).result()
    seen.append((info.base_model, info.lora_rank, info.train_mlp, info.train_unembed))
    rest.unpublish_checkpoint_from_tinker_path(paths[0]).result()
    for _ in range(2):
        rest.delete_checkpoint_from_tinker_path(paths[0]).result()
    rest.delete_checkpoint(run, f"sampler_weights/{name}").result()
    seen.append(shown(rest.list_checkpoints(run).result()))
    with pytest.raises(library.NotFoundError, match="was deleted"):
        rest.publish_checkpoint_from_tinker_path(paths[0]).result()
    with pytest.raises(ValueError, match="tinker"):
        rest.delete_checkpoint_from_tinker_path(f"tinker://{run}/../weights/{name}")
    client.close("success").result()
    return seen


async def test_what_is_kept_is_listed_and_changed_alike(place):
    theirs = await in_thread(kept, tinker, *place, "a")
    assert await in_thread(kept, rollout.client, *place, "a") == theirs
    assert len(theirs[0]) == 2


async def test_what_was_saved_is_downloaded_whole_or_not_at_all(place, tmp_path):
    def download(url, key):
        with rollout.connect(url, key) as client:
            model = new_model(client)
            path = model.save_weights_for_sampler("a").result().path
            with rollout.client.RestClient(base_url=url, api_key=key) as rest:
                folder = rest.download_checkpoint(path, tmp_path / "in" / "out").result()
                with pytest.raises(FileExistsError, match="is there already"):
                    rest.download_checkpoint(path, folder)
                with pytest.raises(rollout.client.NotFoundError):
                    rest.download_checkpoint(path + "b", tmp_path / "in" / "other").result()
        return folder

    async with losing_proxy(place[0]) as (proxy, lossy):
        folder = await in_thread(download, lossy, place[1])
    assert {"config.json", "model.safetensors", "README.md"} <= {
        one.name for one in folder.iterdir()
    }
    assert [one.name for one in (tmp_path / "in").iterdir()] == ["out"]
    assert proxy.lost


async def test_answers_that_are_lost_change_nothing(place):
    url, key = place
    calm = await in_thread(program, rollout.client, url, key)
    async with losing_proxy(url) as (proxy, lossy):
        assert await in_thread(program, rollout.client, lossy, key) == calm
    assert proxy.lost["/api/v1/forward_backward"] == 5
    assert proxy.lost["/api/v1/create_model"] == 1


def own_loss(data, logprobs):
    return -(torch.cat(logprobs) ** 2).sum(), {"mine": 1.0}


async def test_a_loss_of_ones_own_has_the_gradient_that_it_has_elsewhere(place):
    def norm(library):
        model = new_model(library.ServiceClient(base_url=place[0], api_key=place[1]), seed=9)
        said = model.forward_backward_custom([datum(library)], own_loss)
        stepped = model.optim_step(library.AdamParams())  # waits for the loss
        return said.result().metrics["mine"], stepped.result().metrics["gradient_norm:max"]

    assert await in_thread(norm, rollout.client) == await in_thread(norm, tinker)


async def test_every_answer_of_a_model_has_the_chain_behind_it(place):
    def chains():
        with rollout.connect(*place) as client:
            model = new_model(client)
            said = [
                model.forward_backward([datum(rollout.client)], "cross_entropy").result(),
                model.optim_step().result(),
                model.save_state("a").result(),
                model.save_weights_for_sampler("a").result(),
            ]
            return [one.chain for one in said], model.get_standing()

    found, standing = await in_thread(chains)
    assert len(set(found)) == 4
    assert (standing.calls, standing.chain) == (4, found[-1])


async def test_coroutines_await_what_threads_wait_for(place):
    client = await in_thread(rollout.connect, *place)
    model = await client.create_lora_training_client_async("tiny", 4, 1, train_unembed=False)
    backward = await model.forward_backward_async([datum(rollout.client)], "cross_entropy")
    stepped = await model.optim_step_async(rollout.client.AdamParams())
    assert (await backward).metrics["loss:sum"] > 0
    assert (await stepped).metrics["num_gathered:sum"] == 1
    sampler = await model.save_weights_and_get_sampling_client_async()
    settings = rollout.client.SamplingParams(max_tokens=2)
    prompt = rollout.client.ModelInput.from_ints(SEQUENCE[:3])
    several = await asyncio.gather(*(sampler.sample_async(prompt, 1, settings) for _ in range(100)))
    assert len({one.sequences[0].sequence_id for one in several}) == 100
    assert len(await sampler.compute_logprobs_async(prompt)) == 3
    await in_thread(client.close)


async def test_a_state_is_gone_on_from_in_the_same_model(place):
    def chains():
        model = new_model(rollout.connect(*place))
        model.forward_backward([datum(rollout.client)], "cross_entropy")
        model.optim_step()
        path = model.save_state("one").result().path
        model.forward_backward([datum(rollout.client)], "cross_entropy")
        model.optim_step()
        loaded = model.load_state_with_optimizer(path).result()
        assert loaded.path == path
        return loaded.chain, model.get_standing().chain

    chain, standing = await in_thread(chains)
    assert chain == standing != ""


async def test_refusals_are_the_services_words_and_what_follows_goes_on(place):
    def refusals():
        client = rollout.connect(*place)
        model = new_model(client)
        with pytest.raises(
            rollout.client.RequestFailedError, match="expected 9 values, one for each"
        ):
            model.forward_backward([datum(rollout.client, weights=[1.0])], "cross_entropy").result()
        with pytest.raises(rollout.client.UnprocessableEntityError, match="there are tiny"):
            client.create_lora_training_client("large", train_unembed=False).result()
        with pytest.raises(rollout.client.NotFoundError, match="there is no weights"):
            client.create_sampling_client(model_path="nothing").result()
        with pytest.raises(TypeError, match="expected a scalar tensor"):
            model.forward_backward_custom(
                [datum(rollout.client)], lambda d, found: (1.0, {})
            ).result()
        with pytest.raises(ValueError, match="expected one sequence or more"):
            model.forward([], "cross_entropy")
        assert model.forward_backward([datum(rollout.client)], "cross_entropy").result().chain
        client.close()
        with pytest.raises(rollout.client.APIConnectionError, match="was closed"):
            model.optim_step()

    before = threading.active_count()
    await in_thread(refusals)
    assert "rollout-client" not in [one.name for one in threading.enumerate()][before:]


async def test_what_is_wrong_with_an_address_or_a_key_is_said_at_once(place, monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    url, key = place
    with pytest.raises(SpecError, match="set TINKER_API_KEY"):
        rollout.connect(url)
    with pytest.raises(rollout.client.AuthenticationError, match="rollout infer keys create"):
        await in_thread(rollout.connect, url, "tml-other")
    with pytest.raises(
        rollout.client.APIConnectionError, match="see that `rollout serve --train` runs"
    ):
        await in_thread(lambda: rollout.connect("http://127.0.0.1:9", key, retry_seconds=0.1))
    assert "TINKER_API_KEY" not in os.environ
