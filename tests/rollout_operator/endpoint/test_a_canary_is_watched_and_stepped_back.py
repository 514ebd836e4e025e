"""A candidate answers a share of the sessions beside what serves: it takes over when its time is over, and goes at once when it is worse."""

import json

import pytest
from endpoint_world import OTHER, UID, World

from rollout_api import names

CANARY = {"canaryPercent": 10, "bakeSeconds": 300}
GATE = {"metric": "accuracy", "lowerBound": "0.5", "action": "StopPromotion"}
BARRED = {"suite": {"builtin": {"name": "arithmetic"}}, "gate": GATE}
GOOD = {"requests": 500, "failedShare": "0.0", "firstByteP95": "0.2"}
FAILS = {**GOOD, "failedShare": "0.05"}
SLOW = {**GOOD, "firstByteP95": "0.4"}
FEW = {**FAILS, "requests": 20}


async def begin(**promotion):
    """An endpoint that serves, and whose next model is up."""
    world = World(replicas=2)
    await world.look(2)
    world.come_up()
    await world.look(2)
    world.edit(promotion={**CANARY, **promotion}, model=OTHER)
    await world.look(2)
    assert not world.jobs, "nobody answers yet"
    assert ("ConfigMap", "chat-canary") not in world.objects
    world.come_up()
    await world.look()
    return world


def weights(world):
    return {one["name"]: one["weight"] for one in world.status["revisions"]}


async def test_a_share_of_the_sessions_is_sent_on_and_both_sides_are_watched():
    world = await begin()
    await world.look()
    old = world.selected()
    [new] = world.deployments().keys() - {old}
    assert world.canary() == {
        "url": "http://chat-candidate.ns.svc:8000",
        "percent": 10,
        "salt": new,
    }
    for name, revision in (("candidate", new), ("baseline", old)):
        spec = world.objects["Service", f"chat-{name}"]["spec"]
        assert (spec["clusterIP"], spec["selector"][names.LABEL_REVISION]) == ("None", revision)
    [job] = world.jobs
    assert job.startswith(f"measure-{UID}-")
    order = json.loads(world.order()["value"])
    assert (order["candidate"], order["serving"]) == (
        "chat-candidate.ns.svc",
        "chat-baseline.ns.svc",
    )
    assert (order["seconds"], order["guard"]["minRequests"]) == (300, 200)
    assert weights(world) == {new: 10, old: 90}
    assert world.condition("Progressing") == ("True", "Baking")
    assert "Baking" in world.reasons()
    writes = world.writes
    await world.look(3)
    assert (world.writes, len(world.jobs)) == (writes, 1)


@pytest.mark.parametrize("seen", [GOOD, FEW], ids=["as good", "with few requests"])
async def test_one_that_is_not_worse_takes_over_and_nothing_is_sent_on_any_more(seen):
    world = await begin()
    old = world.selected()
    world.watch(seen, GOOD)
    await world.look(3)
    [new] = world.deployments()
    assert world.selected() == new != old
    assert world.canary()["percent"] == 0
    assert not {("Service", "chat-candidate"), ("Service", "chat-baseline")} & world.objects.keys()
    assert weights(world)[new] == 100
    found = {one["name"]: one for one in world.status["revisions"]}[new]
    assert found["canary"]["candidate"]["requests"] == seen["requests"]
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize(
    ("seen", "words"),
    [(FAILS, "it failed 5.0% of 500 requests"), (SLOW, "2.00x (maxFirstByteRatio 1.5)")],
)
async def test_a_worse_one_goes_at_once_and_what_served_has_everybody(seen, words):
    world = await begin()
    old = world.selected()
    world.watch(seen, GOOD)
    await world.look(2)
    [new] = world.deployments().keys() - {old}
    assert world.selected() == old
    assert world.deployments()[new]["spec"]["replicas"] == 0
    assert world.canary()["percent"] == 0
    assert ("Service", "chat-candidate") not in world.objects
    assert world.condition("Stalled") == ("True", "CanaryWorse")
    assert words in world.said("Progressing")
    await world.look()
    assert weights(world) == {new: 0, old: 100}
    assert world.condition("Available") == ("True", "Serving")
    writes = world.writes
    await world.look(3)
    assert world.writes == writes


async def test_a_guard_of_ones_own_holds():
    world = await begin(guard={"maxFirstByteRatio": "3", "maxFailedShare": "0.1"})
    world.watch({**SLOW, "failedShare": "0.05"}, GOOD)
    await world.look(3)
    assert world.condition("Ready") == ("True", "Serving")


async def test_another_guard_tries_one_that_was_worse_again():
    world = await begin()
    old = world.selected()
    world.watch(SLOW, GOOD)
    await world.look(3)
    world.edit(promotion={**CANARY, "guard": {"maxFirstByteRatio": "3"}})
    await world.look(2)
    world.come_up()
    await world.look(2)
    assert len(world.jobs) == 2
    assert world.canary()["percent"] == 10
    world.watch(SLOW, GOOD)
    await world.look(3)
    assert world.selected() != old
    assert world.condition("Ready") == ("True", "Serving")


async def test_evaluations_come_first_and_one_that_misses_its_bar_gets_no_session():
    world = await begin(evaluations=[BARRED])
    assert ("ConfigMap", "chat-canary") not in world.objects
    world.find((0.9, 0.8))
    await world.look(2)
    assert len(world.jobs) == 2
    assert world.canary()["percent"] == 10
    world.watch(GOOD, GOOD)
    await world.look(3)
    [new] = world.deployments()
    found = {one["name"]: one for one in world.status["revisions"]}[new]
    assert found["measured"][0]["passed"] is True
    assert found["canary"]["candidate"]["requests"] == 500
    assert "arithmetic: accuracy" in str(world.events[-1])
    assert "candidate: 500 requests" in str(world.events[-1])


async def test_the_first_of_an_endpoint_has_nothing_beside_it_and_serves_at_once():
    world = World(promotion=CANARY)
    await world.look()
    world.come_up()
    await world.look(2)
    assert not world.jobs
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize("answer", ["", "{}x", '{"candidate": {"requests": -1}}'])
async def test_a_watcher_that_says_nothing_hands_nobody_over(answer):
    world = await begin()
    old = world.selected()
    world.end_job(answer)
    await world.look(3)
    assert world.selected() == old
    assert world.condition("Progressing") == ("False", "CanaryWorse")


async def test_what_the_candidate_was_told_ends_with_another_edit():
    world = await begin()
    old = world.selected()
    world.edit(model={"uri": "rollout://tiny-adder"})
    await world.look(3)
    assert list(world.deployments()) == [old]
    assert world.canary()["percent"] == 0
    assert ("Service", "chat-candidate") not in world.objects
    assert world.condition("Ready") == ("True", "Serving")
