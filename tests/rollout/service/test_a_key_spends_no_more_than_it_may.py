"""Tokens of a key: every acknowledged call is charged, once, through kills; what is spent is refused by name and the order goes on."""

from __future__ import annotations

import asyncio
import random
import sqlite3

import msgspec
import pytest
from service_kit import sequence_datum

from rollout.errors import LedgerError
from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.calls import (
    ModelAnswer,
    ModelCall,
    SampleAnswer,
    SampleCall,
    SampledSequence,
    SampleOutcome,
)
from rollout.service.tenants.costs import tokens_at_most, tokens_used

TOKENS = 6
"""Of a forward pass here."""


async def sampler_of(client):
    session = {"session_id": client.session, "sampling_session_seq_id": 0, "base_model": "tiny"}
    return (await client.post("create_sampling_session", session))[1]["sampling_session_id"]


def spent_by_the_book(folder):
    """Every call of the book, counted by itself: what it cost, and at most where it has no answer."""
    book = sqlite3.connect(folder / "calls.sqlite")
    rows = book.execute("SELECT line, call, answer FROM calls").fetchall()
    (found,) = book.execute("SELECT coalesce(sum(units), 0) FROM spent").fetchone()
    book.close()
    total = 0
    for line, encoded, answer in rows:
        kinds = (SampleCall, SampleOutcome) if ":sample" in line else (ModelCall, ModelAnswer)
        call = msgspec.msgpack.decode(encoded, type=kinds[0])
        if answer is None:
            total += tokens_at_most(call)
        else:
            total += tokens_used(call, msgspec.msgpack.decode(answer, type=kinds[1]))
    assert found == total
    return total


def limit(running, **limits):
    (key,) = running.keys.all_keys()
    running.keys.change(key.id, limits)


async def test_passes_samples_and_scores_are_charged_and_what_is_refused_is_not(service, tmp_path):
    running = await service()
    client = running.client("ann", training_tokens=1000)
    await client.begin()
    await client.answer(await client.backward([sequence_datum(), sequence_datum()]))
    await client.answer(await client.backward([sequence_datum()], forward_only=True))
    await client.answer(await client.step())
    assert running.desk.use.of("ann").charged == 3 * TOKENS
    refused = await client.answer(await client.backward([sequence_datum(weights=[1.0])]))
    assert "weights" in refused["error"]
    assert running.desk.use.of("ann").charged == 3 * TOKENS
    sampler = await sampler_of(client)
    drawn = await client.answer(await client.sample(sampler, 0, num_samples=3))
    tokens = sum(len(one.tokens) // 4 for one in drawn.sequences)
    scored = await client.answer(
        await client.sample(sampler, 1, params={"max_tokens": 1}, prompt_logprobs=True)
    )
    assert len(scored.prompt_logprobs) // 4 == 2
    assert running.desk.use.of("ann").charged == 3 * TOKENS + 2 + tokens + 2 + 1
    assert spent_by_the_book(tmp_path) == running.desk.use.of("ann").charged
    assert running.desk.use.of("ann").held == 0


async def test_a_spent_budget_is_an_answer_that_says_how_to_raise_it_and_the_order_goes_on(service):
    running = await service()
    client = running.client("ann", training_tokens=2 * TOKENS)
    await client.begin()
    for _ in range(2):
        assert "error" not in str(await client.answer(await client.backward([sequence_datum()])))
    refused = await client.answer(await client.backward([sequence_datum()]))
    (key,) = running.keys.all_keys()
    assert refused["category"] == "user"
    assert (
        refused["error"]
        == "training_tokens: keys named 'ann' have spent 12 of 12 tokens, and this call takes up to 6;"
        " steps and saves go on. Whoever runs the service raises it: rollout infer keys change"
        f" {key.id} --training-tokens N"
    )
    assert "metrics" in await client.answer(await client.step())
    assert "path" in await client.answer(await client.save_state("kept"))
    limit(running, training_tokens=3 * TOKENS)
    await client.answer(await client.backward([sequence_datum()]))
    assert running.desk.use.of("ann").charged == 3 * TOKENS


async def test_a_repeat_of_a_call_is_what_the_call_was_whatever_became_of_the_budget(service):
    running = await service()
    client = running.client("ann", training_tokens=TOKENS)
    await client.begin()
    first = await client.backward([sequence_datum()])
    await client.answer(first)
    assert await client.backward([sequence_datum()], seq=1) == first
    refused = await client.backward([sequence_datum()])
    said = await client.answer(refused)
    limit(running, training_tokens=None)
    assert await client.backward([sequence_datum()], seq=2) == refused
    assert await client.answer(refused) == said
    status, other = await client.backward([sequence_datum((5, 6, 7))], seq=2)
    assert (status, "was another call" in other["detail"]) == (400, True)
    await running.stop()
    client = (again := await service()).follow(client)
    assert await client.backward([sequence_datum()], seq=2) == refused
    assert again.desk.use.of("ann").charged == TOKENS


async def test_samples_wait_for_what_others_may_give_back_and_are_refused_for_good_at_the_end(
    service,
):
    running = await service(computes=False)
    client = running.client("ann", training_tokens=20)
    await client.begin()
    sampler = await sampler_of(client)
    held = await client.sample(sampler, 0, params={"max_tokens": 12, "stop": [1]})
    assert held[0] == 200
    status, said = await client.sample(sampler, 1, params={"max_tokens": 12})
    assert status == 429
    assert "spent 0 of 20 tokens, and samples that wait may take 14" in said["detail"]
    running.tasks.append(asyncio.create_task(running.desk.sample_forever()))
    await client.answer(held)
    limit(running, training_tokens=running.desk.use.of("ann").charged + 13)
    status, said = await client.sample(sampler, 1, params={"max_tokens": 12})
    assert status == 403
    assert "this call takes up to 14" in said["detail"]
    assert (await client.sample(sampler, 1, params={"max_tokens": 11}))[0] == 200


async def test_a_budget_that_is_lowered_below_what_is_spent_refuses_and_tells_both(service):
    running = await service()
    client = running.client("ann")
    await client.begin()
    sampler = await sampler_of(client)
    await client.answer(await client.backward([sequence_datum()]))
    limit(running, training_tokens=0)
    refused = await client.answer(await client.backward([sequence_datum()]))
    assert "have spent 6 of 0 tokens" in refused["error"]
    assert (await client.sample(sampler))[0] == 403
    assert "metrics" in await client.answer(await client.step())
    limit(running, training_tokens=2 * TOKENS)
    assert "error" not in str(await client.answer(await client.backward([sequence_datum()])))


async def test_a_new_key_of_the_same_name_has_spent_what_the_old_one_had(service):
    running = await service()
    client = running.client("ann", training_tokens=TOKENS)
    await client.begin()
    await client.answer(await client.backward([sequence_datum()]))
    other = running.client("ann", training_tokens=TOKENS)
    stranger = running.client("bob", training_tokens=TOKENS)
    for one in (other, stranger):
        await one.begin()
    assert "have spent 6 of 6" in str(await other.answer(await other.backward([sequence_datum()])))
    assert "error" not in str(await stranger.answer(await stranger.backward([sequence_datum()])))


async def test_kills_at_drawn_moments_leave_no_acknowledged_call_uncharged_and_none_charged_twice(
    service, tmp_path
):
    draw = random.Random(5)
    running = await service()
    client = running.client("ann", training_tokens=10**6)
    await client.begin()
    sampler, sent = await sampler_of(client), []
    for number in range(12):
        acks = (await client.backward([sequence_datum()]), await client.sample(sampler, number))
        assert [status for status, _ in acks] == [200, 200]
        sent += acks
        if draw.random() < 0.5:
            for _ in range(draw.randint(0, 60)):
                await asyncio.sleep(0)
            await running.stop()
            spent_by_the_book(tmp_path)
            client = (running := await service()).follow(client)
            use = running.desk.use.of("ann")
            assert use.charged == spent_by_the_book(tmp_path)
    for ack in sent:
        await client.answer(ack)
    assert running.desk.use.of("ann").charged == spent_by_the_book(tmp_path)
    assert running.desk.use.of("ann").held == 0
    assert not running.desk.use.room.taken


async def test_a_book_from_before_budgets_is_opened_and_charged_from_then_on(service, tmp_path):
    running = await service()
    client = running.client("ann")
    await client.begin()
    await client.answer(await client.backward([sequence_datum()]))
    await running.stop()
    book = sqlite3.connect(tmp_path / "calls.sqlite")
    book.executescript("DROP TABLE spent; PRAGMA user_version = 1;")
    book.close()
    reader = CallBookReader(tmp_path / "calls.sqlite")
    assert reader.find(client.model, 1) is not None
    reader.close()
    client = (running := await service()).follow(client)
    await client.answer(await client.backward([sequence_datum()]))
    assert running.desk.use.of("ann").charged == TOKENS


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"requests_per_minute": 3}, "3 requests a minute"),
        ({"tokens_per_minute": TOKENS}, "6 tokens a minute"),
        ({"in_flight_max": 1}, "1 requests at a time"),
    ],
)
async def test_over_a_rate_a_key_is_told_when_to_come_again_and_others_go_on(service, limits, said):
    running = await service(computes=False)
    client, other = running.client("ann", **limits), running.client("bob")
    await client.begin()
    assert (await client.backward([sequence_datum()]))[0] == 200
    status, told, headers = await client.backward_with_headers([sequence_datum()])
    assert (status, said in told["detail"]) == (429, True)
    assert 1 <= int(headers["Retry-After"]) <= 60
    assert (await client.backward([sequence_datum()], seq=1))[0] == 200
    await other.begin()
    for _ in range(4):
        assert (await other.backward([sequence_datum()]))[0] == 200


async def test_tokens_that_samples_did_not_draw_are_given_back_to_the_rate(service, monkeypatch):
    running = await service()
    client = running.client("ann", tokens_per_minute=200)
    await client.begin()
    sampler = await sampler_of(client)

    async def draw_one(weights, call):
        del weights, call
        return SampleAnswer(
            sequences=(SampledSequence(tokens=b"abcd", logprobs=b"efgh", stopped=True),)
        )

    monkeypatch.setattr(running.desk._pool, "sample", draw_one)
    for number in range(6):
        await client.answer(await client.sample(sampler, number, params={"max_tokens": 150}))
    assert running.desk.use.of("ann").charged == 6 * 3


async def test_a_key_asks_for_the_bases_that_it_names_only(service):
    running = await service()
    client = running.client("ann", models=("other",))
    status, said = await client.get("get_server_capabilities")
    assert (status, said["supported_models"]) == (200, [])
    begun = (await client.post("create_session", {"sdk_version": "0"}))[1]
    session = {"session_id": begun["session_id"], "sampling_session_seq_id": 0}
    status, said = await client.post("create_sampling_session", session | {"base_model": "tiny"})
    assert (status, "is not served to this key" in said["detail"]) == (422, True)


async def test_models_beyond_a_keys_quota_are_refused_and_known_ones_stay(service):
    running = await service()
    client, other = running.client("ann", training_models=1), running.client("bob")
    model = await client.begin()
    assert await client.begin() == model
    ask = {"session_id": client.session, "model_seq_id": 1, "base_model": "tiny"}
    ask |= {"lora_config": {"rank": 4, "seed": 1, "train_unembed": False}}
    status, said = await client.post("create_model", ask)
    assert (status, "have 1 models of 1" in said["detail"]) == (403, True)
    await other.begin()


async def test_saves_beyond_a_keys_bytes_are_refused_before_they_are_made(service, tmp_path):
    running = await service(computes=False)
    client = running.client("ann", training_bytes=1_000_000)
    await client.begin()
    acks = [await client.save_state(f"state-{number}") for number in range(40)]
    running.tasks.append(asyncio.create_task(running.desk.compute_forever()))
    answers = [await client.answer(ack) for ack in acks]
    done = [one for one in answers if "path" in one]
    assert done and len(done) < len(answers)
    assert all("training_bytes: keys named 'ann'" in one["error"] for one in answers[len(done) :])
    on_disk = sum(one.stat().st_size for one in (tmp_path / "states").iterdir())
    assert 0 < on_disk <= 1_000_000
    assert running.desk.use.of("ann").saving == 0
    assert not running.desk.use.room.taken


async def test_the_same_call_twice_at_once_is_charged_and_held_once(service):
    running = await service(computes=False)
    client = running.client("ann", training_tokens=2 * TOKENS + 6)
    await client.begin()
    sampler = await sampler_of(client)
    twice = [client.backward([sequence_datum()], seq=1) for _ in range(5)]
    twice += [client.sample(sampler, 0) for _ in range(3)]
    said = [status for status, _ in await asyncio.gather(*twice)]
    assert said[:5] == [200] * 5
    assert 200 in said[5:]
    assert running.desk.use.of("ann").charged == TOKENS + 6
    assert running.desk.use.of("ann").samples == 1
    assert len(running.desk._intake._tickets) == 2


async def test_a_call_that_could_not_be_written_down_holds_and_costs_nothing(service, monkeypatch):
    running = await service(computes=False)
    client = running.client("ann", training_tokens=100, in_flight_max=1)
    await client.begin()

    def fail(*given):
        raise LedgerError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(running.book, "accept", fail)
        for _ in range(3):
            status, said = await client.backward([sequence_datum()], seq=1)
            assert (status, "the disk is full" in said["detail"]) == (500, True)
    assert running.desk.use.of("ann").charged == 0
    assert not running.desk.use.room.taken
    assert (await client.backward([sequence_datum()], seq=1))[0] == 200


async def test_what_is_used_is_told_to_the_keys_of_the_name(service):
    running = await service()
    client = running.client("ann", training_tokens=100, training_models=3)
    await client.begin()
    await client.answer(await client.backward([sequence_datum()]))
    await client.answer(await client.save_state("kept"))
    status, said = await client.get("rollout/usage")
    assert status == 200
    assert said["tokens"] == {"spent": TOKENS, "held": 0, "limit": 100}
    assert said["models"] == {"spent": 1, "limit": 3}
    assert said["saved_bytes"]["spent"] > 10_000
    other = (await running.client("bob").get("rollout/usage"))[1]
    assert (other["tokens"]["spent"], other["saved_bytes"]["spent"]) == (0, 0)
