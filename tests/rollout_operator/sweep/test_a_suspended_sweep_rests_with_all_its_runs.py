"""A suspended sweep makes nothing and suspends what it has at work; lifted, those go on that it had suspended, and no others."""

import pytest
from sweep_world import HALVED, PLACE, RATE, World

from rollout_operator.sweep.status import DRAIN_SECONDS, LOOK_SECONDS

FORKED = {**HALVED, "forks": {"max": 3}}
SIX = {
    "parameters": [{"field": RATE, "values": [f"{n}e-5" for n in range(1, 7)]}],
    "parallelism": 3,
}


async def at_work(**spec):
    world = World(**spec)
    await world.settle()
    return world


async def rested(**spec):
    world = await at_work(**spec)
    world.suspend()
    await world.settle()
    world.rest()
    await world.settle()
    return world


async def test_runs_at_work_are_suspended_and_none_is_made():
    world = await rested(**SIX)
    assert world.suspended() == ["rates-000", "rates-001", "rates-002"]
    assert len(world.made) == 3
    assert world.status["counts"]["suspended"] == 3
    assert world.status["counts"]["running"] == 0
    assert [one.get("suspended") for one in world.status["runs"]] == [True] * 3 + [None] * 3


async def test_it_says_which_runs_have_pods_yet_and_rests_when_none_has():
    world = await at_work()
    world.suspend()
    await world.settle()
    assert world.said("Ready") == ("False", "Draining")
    assert world.said("Reconciling") == ("True", "Draining")
    assert "rates-000, rates-001, rates-002" in str(world.status["conditions"])
    assert world.again == DRAIN_SECONDS
    world.rest()
    await world.settle()
    assert world.said("Ready") == ("False", "Suspended")
    assert world.said("Suspended") == ("True", "Suspended")
    assert world.said("Reconciling") == ("", "")
    assert world.again is None


async def test_lifted_the_runs_go_on_and_more_are_made():
    world = await rested(**SIX)
    world.suspend(lifted=True)
    await world.settle()
    assert world.suspended() == []
    assert not any("sweep-suspended" in str(one["metadata"]) for one in world.runs().values())
    assert world.said("Suspended") == ("", "")
    assert world.said("Ready") == ("True", "Running")
    assert world.again == LOOK_SECONDS
    world.report(0, 400, "0.5")
    world.end(0)
    await world.settle()
    assert "rates-003" in world.made


async def test_a_sweep_that_begins_suspended_makes_nothing_until_it_is_lifted():
    world = World(suspend=True)
    await world.settle()
    assert world.made == []
    assert world.said("Suspended") == ("True", "Suspended")
    world.suspend(lifted=True)
    await world.settle()
    assert world.made == ["rates-000", "rates-001", "rates-002"]


async def test_a_run_that_somebody_has_suspended_stays_so_when_the_sweep_goes_on():
    world = await at_work()
    world.set_run(1, suspended=True)
    await world.settle()
    assert world.status["counts"]["suspended"] == 1
    world.suspend()
    await world.settle()
    world.suspend(lifted=True)
    await world.settle()
    assert world.suspended() == ["rates-001"]


async def test_a_run_that_somebody_resumes_meanwhile_is_suspended_again():
    world = await rested()
    world.set_run(1, suspended=False)
    await world.settle()
    assert world.suspended() == ["rates-000", "rates-001", "rates-002"]


async def test_a_loser_stays_stopped_when_the_sweep_goes_on():
    world = await at_work(**HALVED)
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    world.suspend()
    await world.settle()
    world.suspend(lifted=True)
    await world.settle()
    assert world.suspended() == ["rates-000", "rates-001"]
    assert world.outcomes() == ["Stopped", "Stopped", None]


async def test_a_run_that_loses_while_it_saves_itself_does_not_go_on():
    world = await at_work(**HALVED)
    world.suspend()
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    world.rest()
    await world.settle()
    assert world.outcomes() == ["Stopped", "Stopped", None]
    world.suspend(lifted=True)
    await world.settle()
    assert world.suspended() == ["rates-000", "rates-001"]


async def test_a_winner_is_suspended_once_the_snapshot_that_a_fork_begins_with_is_made():
    world = await at_work(**FORKED)
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    world.suspend()
    await world.settle()
    assert "rates-002" not in world.suspended()
    assert "rates-002 until the snapshot of rates-f002 is made" in str(world.status["conditions"])
    world.save(1)
    world.save(2)
    await world.settle()
    assert "rates-002" in world.suspended()
    assert not {"rates-f001", "rates-f002"} & world.runs().keys()
    world.suspend(lifted=True)
    await world.settle()
    assert {"rates-f001", "rates-f002"} <= world.runs().keys()


async def test_a_run_that_ends_or_goes_meanwhile_is_not_touched_again():
    world = await rested()
    world.end(0, well=False)
    world.delete(1)
    world.suspend(lifted=True)
    await world.settle()
    assert world.outcomes() == ["Failed", "Deleted", None]
    assert world.suspended() == ["rates-000"]


async def test_a_run_of_somebody_else_is_neither_suspended_nor_resumed():
    world = World()
    world.put("rates-001", labels={"rollout.dev/sweep-suspended": "true"})
    await world.settle()
    world.suspend()
    await world.settle()
    assert world.suspended() == ["rates-000", "rates-002"]
    world.suspend(lifted=True)
    await world.settle()
    assert world.runs()["rates-001"]["spec"] == {}


async def test_a_lost_status_loses_no_suspension():
    world = await rested()
    world.forget()
    await world.settle()
    assert world.said("Suspended") == ("True", "Suspended")
    world.forget()
    world.suspend(lifted=True)
    await world.settle()
    assert world.suspended() == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("lifts", [False, True])
async def test_an_operator_that_dies_at_any_write_suspends_and_resumes_the_same_runs(after, lifts):
    for write in range(1, 40):
        world = await (rested() if lifts else at_work())
        world.set_run(1, suspended=True)
        world.suspend(lifted=lifts)
        died = await world.look_killed(write, after=after)
        await world.settle()
        world.rest()
        await world.settle()
        every = ["rates-000", "rates-001", "rates-002"]
        assert world.suspended() == ([] if lifts else every)
        assert world.made == every
        if not died:
            return
    raise AssertionError("the operator does not come to rest")


async def test_each_thing_that_happens_is_told_once():
    world = await rested(**FORKED)
    world.suspend(lifted=True)
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    world.save(1)
    world.save(2)
    await world.settle()
    for number in (2, "f001", "f002"):
        world.report(number, 400, "0.9")
        world.end(number, well=number != "f001")
    await world.settle()
    told = world.events()
    reasons = [reason for reason, _ in told]
    assert {one: reasons.count(one) for one in reasons} == {
        "RunStarted": 5,
        "Running": 2,
        "Suspended": 1,
        "RunStopped": 2,
        "RunForked": 2,
        "RunEnded": 3,
        "Succeeded": 1,
    }
    notes = dict(reversed(told))
    assert notes["RunStarted"] == f"run rates-000 is made with {RATE}=1e-5"
    assert notes["RunForked"] == "run rates-f001 begins from run rates-002"
    assert "at step 20 it was number 3 of 3" in notes["RunStopped"]
    assert notes["RunEnded"] == "run rates-002 has ended, Succeeded with 0.9 at step 400"
    world.forget()
    await world.settle()
    assert len(world.events()) == len(told)


async def test_what_holds_a_sweep_up_is_told_as_a_warning():
    world = World()
    world.put("rates-001")
    await world.settle()
    warnings = [one for _, one in world.model.of_kind("events") if one["type"] == "Warning"]
    assert [one["reason"] for one in warnings] == ["FieldConflict"]
    assert warnings[0]["regarding"]["kind"] == "RolloutSweep"


async def test_a_spec_that_cannot_be_read_suspends_nothing():
    world = await at_work()
    world.model.merge(
        "an older release", PLACE, {"spec": {"suspend": True, "template": {"spec": {"train": 7}}}}
    )
    await world.settle()
    assert world.suspended() == []
    assert world.said("Stalled") == ("True", "InvalidSpec")
