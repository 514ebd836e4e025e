"""The client from the package index, as it is, against limits of its key: it waits where that helps, and is refused where it does not."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
import tinker
from tinker import types

from rollout.service.refusals import CallRefused

SEQUENCE = [5, 6, 7, 8, 9, 10, 11]
TOKENS = len(SEQUENCE) - 1
DATUM = types.Datum(
    model_input=types.ModelInput.from_ints(SEQUENCE[:-1]),
    loss_fn_inputs={"target_tokens": SEQUENCE[1:], "weights": [1.0] * TOKENS},
)
STEP = types.AdamParams(learning_rate=1e-2)
ADAPTER = {"rank": 4, "seed": 1, "train_unembed": False}
PROMPT = types.ModelInput.from_ints(SEQUENCE[:2])


def made(client):
    """A client that was asked for: some versions answer with a future of it, some with it."""
    return client.result(60) if hasattr(client, "result") else client


async def sampler_of(client):
    return await asyncio.to_thread(lambda: made(client.create_sampling_client(base_model="tiny")))


@asynccontextmanager
async def sdk(running, name, monkeypatch, **limits):
    """The client with a key of its own, and a model of it."""
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    url, key = str(running.http.make_url("/")), running.client(name, **limits).key

    def begin():
        client = tinker.ServiceClient(base_url=url, api_key=key)
        return client, made(client.create_lora_training_client("tiny", **ADAPTER))

    client, model = await asyncio.to_thread(begin)
    try:
        yield client, model
    finally:
        await asyncio.to_thread(lambda: client.close("success").result(60))


def refusals_of(running, monkeypatch):
    """What new calls are refused with, as it happens, and an event that says that one was."""
    seen, once = [], asyncio.Event()
    admit = running.desk.use.admit

    def record(*given):
        try:
            return admit(*given)
        except CallRefused as refusal:
            seen.append(refusal)
            once.set()
            raise

    monkeypatch.setattr(running.desk.use, "admit", record)
    return seen, once


def begin_computing(running):
    for duty in (running.desk.compute_forever, running.desk.sample_forever):
        running.tasks.append(asyncio.create_task(duty()))


async def result(future):
    return await asyncio.to_thread(future.result, 120)


async def test_a_call_that_is_one_too_many_waits_and_is_made_and_others_are_not_held_up(
    service, monkeypatch
):
    running = await service(computes=False)
    seen, once = refusals_of(running, monkeypatch)
    async with (
        sdk(running, "ann", monkeypatch, in_flight_max=1) as (_, model),
        sdk(running, "bob", monkeypatch) as (_, other),
    ):
        backward = model.forward_backward([DATUM], "cross_entropy")
        stepped = model.optim_step(STEP)
        await once.wait()
        theirs = [other.forward_backward([DATUM], "cross_entropy") for _ in range(3)]
        begin_computing(running)
        for one in (backward, *theirs, stepped):
            assert (await result(one)).metrics
        assert {(one.status, 1 <= one.retry_after <= 60) for one in seen} == {(429, True)}
        assert {str(one) for one in seen} == {"this key may have 1 requests at a time"}


async def test_a_rate_that_is_reached_is_waited_for(service, monkeypatch):
    running = await service()
    seen, _ = refusals_of(running, monkeypatch)
    async with sdk(running, "ann", monkeypatch, tokens_per_minute=600) as (_, model):
        await result(model.forward_backward([DATUM], "cross_entropy"))
        (use,) = running.desk.use._rates.uses.values()
        use.tokens.level = 0.0
        backward = model.forward_backward([DATUM], "cross_entropy")
        stepped = model.optim_step(STEP)
        assert (await result(backward)).metrics["loss:sum"] > 0
        assert (await result(stepped)).metrics["num_gathered:sum"] == 2
        assert seen and all(one.status == 429 for one in seen)


async def test_samples_that_are_too_many_at_a_time_wait_for_each_other(service, monkeypatch):
    running = await service(computes=False)
    seen, once = refusals_of(running, monkeypatch)
    async with sdk(running, "ann", monkeypatch, in_flight_max=1) as (client, _):
        sampler = await sampler_of(client)
        params = types.SamplingParams(max_tokens=2)
        drawn = [sampler.sample(PROMPT, 1, params) for _ in range(2)]
        await once.wait()
        begin_computing(running)
        for one in drawn:
            assert len((await result(one)).sequences) == 1
        assert {one.status for one in seen} == {429}


async def test_a_spent_budget_is_told_once_and_the_model_goes_on_when_there_is_more(
    service, monkeypatch
):
    running = await service()
    seen, _ = refusals_of(running, monkeypatch)
    async with sdk(running, "ann", monkeypatch, training_tokens=TOKENS + 1) as (client, model):
        await result(model.forward_backward([DATUM], "cross_entropy"))
        with pytest.raises(
            tinker.RequestFailedError, match=r"have spent 6 of 7 tokens.*change"
        ) as said:
            await result(model.forward_backward([DATUM], "cross_entropy"))
        assert said.value.category.value == "user"
        sampler = await sampler_of(client)
        with pytest.raises(tinker.PermissionDeniedError, match="training_tokens"):
            await result(sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=2)))
        assert len(seen) == 2
        assert (await result(model.optim_step(STEP))).metrics["num_gathered:sum"] == 1
        (key,) = running.keys.all_keys()
        running.keys.change(key.id, {"training_tokens": 10 * TOKENS})
        await result(model.forward_backward([DATUM], "cross_entropy"))
        assert running.desk.use.of("ann").charged == 2 * TOKENS


async def test_a_model_beyond_the_quota_is_refused_at_once(service, monkeypatch):
    running = await service()
    async with sdk(running, "ann", monkeypatch, training_models=1) as (client, _):
        with pytest.raises(tinker.PermissionDeniedError, match="have 1 models of 1"):
            await asyncio.to_thread(
                lambda: made(client.create_lora_training_client("tiny", **ADAPTER))
            )


async def test_the_client_says_what_it_waits_for(service, monkeypatch, caplog):
    running = await service(computes=False)
    async with (
        sdk(running, "ann", monkeypatch) as (_, model),
        sdk(running, "bob", monkeypatch) as (_, other),
    ):
        monkeypatch.setattr("tinker.lib.queue_state_logger.PAUSE_GRACE_PERIOD", 0)
        caplog.set_level(logging.WARNING, logger="tinker")
        theirs = other.forward_backward([DATUM], "cross_entropy")
        ours = model.forward_backward([DATUM], "cross_entropy")
        while "calls of another key have their turn" not in caplog.text:
            await asyncio.sleep(0.01)
        begin_computing(running)
        for one in (theirs, ours):
            assert (await result(one)).metrics
