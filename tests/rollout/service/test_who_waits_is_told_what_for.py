"""``queue_state`` of an answer that is not there yet: what this caller waits for, in the words that clients know."""

from __future__ import annotations

import asyncio

import pytest
from service_kit import PREFIX, sequence_datum

from rollout.service.refusals import CallRefused, RateReached
from rollout.service.tenants.room import RoomBounds
from rollout.service.tenants.waits import QueueWait, tell_missing, tell_turn


async def told(client, ack):
    """Why an acknowledged call has no answer yet."""
    headers = {"X-API-Key": client.key}
    async with client.http.post(
        f"{PREFIX}/retrieve_future", json={"request_id": ack[1]["request_id"]}, headers=headers
    ) as reply:
        said = await reply.json()
        assert (reply.status, said["type"]) == (408, "try_again")
        return said["queue_state"], said.get("queue_state_reason", "")


@pytest.mark.parametrize(
    ("current", "waiting", "state", "reason"),
    [
        (None, ["ann"], "active", ""),
        ("ann", ["ann", "bob"], "active", ""),
        ("bob", ["ann", "bob"], "paused_capacity", "calls of another key have their turn"),
        (None, ["ann", "bob", "cyd"], "paused_capacity", "calls of 2 other keys have their turn"),
    ],
)
def test_a_call_that_may_be_made_waits_for_others_only_while_they_have_their_turn(
    current, waiting, state, reason
):
    assert tell_turn("ann", current, waiting) == QueueWait(state=state, reason=reason)


def test_what_is_missing_is_told_with_why_it_was_not_let_in():
    rate, full = RateReached("3 requests a minute", 20.0), CallRefused("full", 429)
    assert tell_missing(4, None).reason == "call 4 of this model has not come"
    assert tell_missing(4, (3, rate)) == tell_missing(4, None)
    assert tell_missing(4, (4, full)).state == "paused_capacity"
    found = tell_missing(4, (4, rate))
    assert found.state == "paused_rate_limit"
    assert found.reason == "call 4 of this model is to come again: 3 requests a minute"


async def test_calls_of_other_keys_are_told_and_a_keys_own_are_not(service):
    running = await service(computes=False)
    client, other = running.client("ann"), running.client("bob")
    await client.begin()
    await other.begin()
    ack = await client.backward([sequence_datum()])
    assert await told(client, ack) == ("active", "")
    await client.backward([sequence_datum()])
    assert await told(client, ack) == ("active", "")
    await other.backward([sequence_datum()])
    state, reason = await told(client, ack)
    assert (state, reason) == ("paused_capacity", "calls of another key have their turn")
    assert "bob" not in reason


async def test_samples_wait_for_samples_and_not_for_steps(service):
    running = await service(computes=False)
    acks, clients = [], [running.client(name) for name in ("ann", "bob")]
    for client in clients:
        await client.begin()
        ask = {"session_id": client.session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        sampler = (await client.post("create_sampling_session", ask))[1]["sampling_session_id"]
        await client.backward([sequence_datum()])
        acks.append(await client.sample(sampler))
        wanted = "active" if client is clients[0] else "paused_capacity"
        assert (await told(client, acks[-1]))[0] == wanted


async def test_who_waits_behind_a_call_that_the_keys_rate_did_not_let_in_is_told_that(service):
    running = await service(computes=False)
    client = running.client("ann", tokens_per_minute=8)
    await client.begin()
    assert (await client.backward([sequence_datum()], seq=2))[0] == 200
    assert (await client.backward([sequence_datum()], seq=1))[0] == 429
    state, reason = await told(client, (200, {"request_id": f"{client.model}#2"}))
    assert state == "paused_rate_limit"
    assert reason.startswith("call 1 of this model is to come again: Rate limit reached: 8 tokens")
    assert (await client.step(seq=1))[0] == 200
    assert (await told(client, (200, {"request_id": f"{client.model}#2"})))[0] == "active"


async def test_who_waits_behind_a_call_that_found_no_room_is_told_that(service):
    running = await service(computes=False, queue=RoomBounds(all_bytes=4800, key_bytes=2400))
    client = running.client()
    await client.begin()
    tokens = tuple([5, 6, 7] * 20)
    assert (await client.backward([sequence_datum(tokens)], seq=2))[0] == 200
    large = [sequence_datum(tuple([5] * 110))]
    assert (await client.backward(large, seq=1))[0] == 429
    state, reason = await told(client, (200, {"request_id": f"{client.model}#2"}))
    assert state == "paused_capacity"
    assert "call 1 of this model is to come again: calls that wait" in reason


async def test_a_call_that_is_made_now_is_active(service):
    running = await service(computes=False)
    client, other = running.client("ann"), running.client("bob")
    await client.begin()
    await other.begin()
    ack = await client.backward([sequence_datum()])
    theirs = await other.backward([sequence_datum()])
    started, go_on = asyncio.Event(), asyncio.Event()
    finish = running.desk._finish

    async def hold(*given):
        started.set()
        await go_on.wait()
        await finish(*given)

    running.desk._finish = hold
    running.tasks.append(asyncio.create_task(running.desk.compute_forever()))
    await started.wait()
    assert await told(client, ack) == ("active", "")
    assert (await told(other, theirs))[0] == "paused_capacity"
    go_on.set()
    await client.answer(ack)
    await other.answer(theirs)
