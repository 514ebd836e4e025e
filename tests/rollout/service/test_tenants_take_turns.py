"""One tenant has no more of the base than another while both wait, however many models or samples either has."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from service_kit import sequence_datum

from rollout.service.turns import COST_MIN, Turns

COSTS = st.floats(0.01, 4.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.data())
def test_tenants_that_always_wait_differ_by_one_call_whatever_their_models_and_costs(models, data):
    costs = [data.draw(COSTS) for _ in models]
    turns, had = Turns(), [0.0] * len(models)
    waiting = [(str(t), f"{t}:{m}") for t, num in enumerate(models) for m in range(num)]
    for _ in range(120):
        place = turns.choose(waiting)
        assert place is not None
        turns.charge(place, costs[int(place[0])])
        had[int(place[0])] += costs[int(place[0])]
        assert max(had) - min(had) <= max(costs) + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=8), min_size=1, max_size=60), COSTS
)
def test_whoever_waits_is_chosen_and_nobody_waits_longer_than_a_round(rounds, cost):
    turns, since = Turns(), dict[str, int]()
    for names in rounds:
        waiting = [(str(name), f"{name}:m") for name in names]
        place = turns.choose(waiting)
        assert place in waiting
        turns.charge(place, cost)
        since = {t: since.get(t, 0) + 1 for t, _ in waiting if t != place[0]}
        assert all(waited <= 2 * 8 for waited in since.values())


def test_one_that_was_away_has_no_claim_to_what_it_left():
    turns = Turns()
    for _ in range(100):
        turns.charge(turns.choose([("busy", "b")]), 1.0)
    order = []
    for _ in range(20):
        place = turns.choose([("busy", "b"), ("back", "a")])
        turns.charge(place, 1.0)
        order.append(place[0])
    assert abs(order.count("busy") - order.count("back")) <= 1
    assert len(turns.tenants.had) <= 2


def test_calls_that_cost_nothing_take_turns_too():
    turns = Turns()
    places = [("one", "a"), ("one", "b"), ("two", "c")]
    seen = [
        turns.choose(places) for _ in range(8) if turns.charge(turns.choose(places), 0.0) is None
    ]
    assert {place for place in seen if place} == set(places)
    assert COST_MIN > 0


async def test_a_tenant_with_one_model_waits_for_one_call_of_one_with_many(service):
    running = await service(computes=False)
    many, single = running.client("many"), running.client("single")
    acks = []
    for number in range(4):
        await many.begin(number=number)
        acks += [await many.backward([sequence_datum()]) for _ in range(3)]
    await single.begin()
    last = [await single.backward([sequence_datum()]) for _ in range(3)][-1]
    order = []
    tell = running.desk._waiters.tell
    running.desk._waiters.tell = lambda line, seq: (order.append(line), tell(line, seq))
    running.tasks.append(asyncio.create_task(running.desk.compute_forever()))
    await single.answer(last)
    for ack in acks:
        await many.answer(ack)
    assert len(order) == 15
    assert order.index(single.model) <= 1
    assert (await single.state())["calls"] == 3


async def test_one_sample_of_a_tenant_does_not_wait_for_all_of_anothers(service):
    running = await service(computes=False)
    clients, samplers = [running.client(name) for name in ("many", "single")], []
    for client in clients:
        await client.begin()
        session = {"session_id": client.session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        samplers.append((await client.post("create_sampling_session", session))[1])
    many, single = (one["sampling_session_id"] for one in samplers)
    acks = [await clients[0].sample(many, seq) for seq in range(12)]
    ack = await clients[1].sample(single)
    order = []
    tell = running.desk._waiters.tell
    running.desk._waiters.tell = lambda line, seq: (order.append(line), tell(line, seq))
    running.tasks.append(asyncio.create_task(running.desk.sample_forever()))
    await clients[1].answer(ack)
    for one in acks:
        await clients[0].answer(one)
    assert order.index(single) <= 1
    assert len(order) == 13
