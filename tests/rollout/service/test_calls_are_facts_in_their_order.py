"""Calls of one model run in the order of their numbers, once each, whoever sends them and however often."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from service_kit import SEQUENCE, logprobs_of, metrics_of, sequence_datum

from rollout.service.line import AHEAD_MAX


async def test_a_model_learns_and_every_answer_carries_its_chain(service):
    client = (await service()).client()
    await client.begin()
    losses = []
    for _ in range(8):
        said = await client.answer(await client.backward([sequence_datum()]))
        losses.append(metrics_of(said)["loss:sum"])
        assert len(logprobs_of(said)) == len(SEQUENCE) - 1
        assert metrics_of(said)["rollout_chain_head:unique"] == int(client.chains[-1][7:19], 16)
        stepped = await client.answer(await client.step())
        assert stepped["metrics"]["gradient_norm:max"] > 0
    assert losses[-1] < losses[0] - 1
    assert len(set(client.chains)) == 16
    state = await client.state()
    assert (state["calls"], state["chain"], state["missing"]) == (16, client.chains[-1], None)


async def test_calls_that_come_before_their_turn_wait_for_it(service):
    running = await service()
    client = running.client()
    model = await client.begin()
    stepped = await client.step(seq=2)
    assert await client.look(f"{model}#2") is None
    assert (await client.state())["missing"] == 1
    headers = {"X-API-Key": client.key}
    ask = {"request_id": f"{model}#2"}
    async with running.http.post("/api/v1/retrieve_future", json=ask, headers=headers) as reply:
        said = await reply.json()
    assert (reply.status, said["queue_state"]) == (408, "paused_capacity")
    assert said["queue_state_reason"] == "call 1 of this model has not come"
    await client.backward([sequence_datum()], seq=1)
    assert (await client.answer(stepped))["metrics"]["num_gathered:sum"] == 1
    assert (await client.state())["calls"] == 2


async def test_a_call_that_is_sent_again_is_the_same_call(service):
    client = (await service()).client()
    await client.begin()
    for seq in (1, 1, 2, 1):
        said = await client.answer(await client.backward([sequence_datum()], seq=seq))
    await asyncio.gather(*(client.step(seq=3) for _ in range(4)))
    assert (await client.answer(await client.step(seq=3)))["metrics"]["num_gathered:sum"] == 2
    assert (await client.state())["calls"] == 3
    again = await client.answer(await client.backward([sequence_datum()], seq=1))
    assert again == said  # as it was answered then, not as it would be now


async def test_another_call_in_a_place_that_is_taken_is_refused(service):
    client = (await service()).client()
    await client.begin()
    await client.answer(await client.backward([sequence_datum()], seq=1))
    before = await client.state()
    status, said = await client.step(seq=1)
    assert status == 400
    assert "was another call; a repeat must be the same" in said["detail"]
    assert await client.state() == before


async def test_two_clients_of_one_model_lose_nothing_and_apply_nothing_twice(service):
    running = await service()
    one = running.client()
    model = await one.begin()
    other = running.follow(one)
    sent = await asyncio.gather(
        one.backward([sequence_datum()], seq=1),
        other.backward([sequence_datum((9, 8, 7, 6))], seq=1),
        one.step(seq=2),
        other.step(seq=2),
    )
    assert sorted(status for status, _ in sent) == [200, 200, 200, 400]
    await one.answer((200, {"request_id": f"{model}#2"}))
    assert (await one.state())["calls"] == 2


@pytest.mark.parametrize(
    ("seq", "status", "words"),
    [
        (0, 400, "seq_id: expected 1 or more, got 0"),
        (AHEAD_MAX + 1, 400, f"seq_id: expected 1 to {AHEAD_MAX}, got {AHEAD_MAX + 1}"),
        (2**31 - 1, 400, "numbered without holes, and the next is 1"),
    ],
)
async def test_a_place_that_no_call_can_take_is_named(service, seq, status, words):
    client = (await service()).client()
    await client.begin()
    got, said = await client.step(seq=seq)
    assert (got, words in said["detail"]) == (status, True), said


async def test_a_full_queue_says_when_to_try_again_and_keeps_numbers_alone_in_memory(service):
    running = await service(computes=False)
    client = running.client()
    model = await client.begin()
    for seq in range(1, AHEAD_MAX + 1):
        running.desk.line(model).add(seq)
    got, said = await client.step(seq=AHEAD_MAX + 1)
    assert (got, f"{AHEAD_MAX} calls wait already behind 0" in said["detail"]) == (429, True)
    assert running.desk.line(model).waiting == set(range(1, AHEAD_MAX + 1))


async def test_models_of_one_base_are_as_they_would_be_alone(service):
    client = (await service()).client()
    models = [await client.begin(seed=seed, number=seed) for seed in (1, 2)]
    for seq in (1, 2, 3, 4):
        for client.model in models:
            await client.answer(
                await (
                    client.backward([sequence_datum()], seq=seq) if seq % 2 else client.step(seq)
                )
            )
    together = []
    for client.model in models:
        together.append((await client.state())["chain"])
    assert together[0] != together[1]
    client.model = await client.begin(seed=1, number=7)
    for seq in (1, 2, 3, 4):
        await client.answer(
            await (client.backward([sequence_datum()], seq=seq) if seq % 2 else client.step(seq))
        )
    assert (await client.state())["chain"] == together[0]


async def test_samplers_draw_from_what_was_saved_and_a_repeat_draws_the_same(service):
    client = (await service()).client()
    await client.begin()
    saved = await client.answer(await client.save("first"))
    for _ in range(6):
        await client.answer(await client.backward([sequence_datum()]))
        await client.answer(await client.step())
    sampler = (await client.answer(await client.save()))["sampling_session_id"]
    status, early = await client.post(
        "create_sampling_session",
        {"session_id": client.session, "sampling_session_seq_id": 0, "model_path": saved["path"]},
    )
    assert status == 200, early
    drawn = {}
    for name in (sampler, early["sampling_session_id"], sampler):
        ack = await client.sample(name, num_samples=3, params={"seed": 5})
        assert len(ack[1]["sample_sequence_ids"]) == 3
        answer = await client.answer(ack)
        assert drawn.setdefault(name, answer) == answer
    assert drawn[sampler] != drawn[early["sampling_session_id"]]
    assert {len(one.tokens) for one in drawn[sampler].sequences} == {16}
    other = await client.answer(await client.sample(sampler, 1, num_samples=3, params={"seed": 5}))
    assert other == drawn[sampler]
    status, said = await client.sample(sampler, 1, num_samples=2, params={"seed": 5})
    assert (status, "was another call" in said["detail"]) == (400, True)


async def test_a_prompt_is_scored_by_what_was_saved_as_the_learner_scores_it(service):
    client = (await service()).client()
    await client.begin()
    scores = {}
    prompt = {"chunks": [{"tokens": list(SEQUENCE)}]}
    for steps in (0, 3):
        for _ in range(steps):
            await client.answer(await client.backward([sequence_datum()]))
            await client.answer(await client.step())
        said = await client.answer(await client.backward([sequence_datum()], forward_only=True))
        sampler = (await client.answer(await client.save()))["sampling_session_id"]
        ack = await client.sample(sampler, prompt=prompt, prompt_logprobs=True)
        found = np.frombuffer((await client.answer(ack)).prompt_logprobs, "<f4")
        assert np.isnan(found[0])
        assert np.abs(found[1:] - logprobs_of(said)).max() < 1e-6
        scores[sampler] = found[1:].sum()
    first, last = scores
    assert scores[last] > scores[first] + 0.1
    alone = {"chunks": [{"tokens": [5]}]}
    for seq, sampler in enumerate((first, last, first), start=1):
        ack = await client.sample(sampler, seq, prompt=alone, prompt_logprobs=True)
        assert len((await client.answer(ack)).prompt_logprobs) == 4
        ack = await client.sample(sampler, seq + 9, prompt=prompt, prompt_logprobs=True)
        found = np.frombuffer((await client.answer(ack)).prompt_logprobs, "<f4")
        assert found[1:].sum() == scores[sampler]
