"""Runs are compared at rungs; losers are suspended, and what cannot be compared is named."""

import pytest
from sweep_world import HALVED, RATE, World

from rollout_api.sweeps.halving import HalvingRule, find_losers, rung_of

RULE = HalvingRule(first_step=20, factor=3, min_runs=3)
NINE = {
    "parameters": [{"field": RATE, "values": [f"{n}e-5" for n in range(1, 10)]}],
    "parallelism": 9,
}


def names_of(losers):
    return [one.name for one in losers]


@pytest.mark.parametrize(
    ("step", "rung"), [(0, None), (19, None), (20, 20), (59, 20), (60, 60), (200, 180)]
)
def test_rungs_are_as_many_times_as_far_as_the_factor(step, rung):
    assert rung_of(RULE, step) == rung


def test_rungs_are_bounded():
    assert rung_of(RULE, 2**60) == 20 * 3**15


def test_the_best_third_of_those_that_came_as_far_goes_on():
    seen = {str(n): {20: float(n)} for n in range(9)}
    assert names_of(find_losers(RULE, seen, seen)) == [str(n) for n in range(6)]


def test_fewer_than_the_least_number_are_not_compared():
    seen = {"a": {20: 0.0}, "b": {20: 1.0}}
    assert find_losers(RULE, seen, seen) == ()


def test_a_tie_stops_nobody():
    seen = {str(n): {20: 0.5} for n in range(9)}
    assert find_losers(RULE, seen, seen) == ()


def test_a_run_is_held_against_those_of_its_own_last_rung_only():
    seen = {"far": {20: 0.1, 60: 0.2}, "a": {20: 0.9}, "b": {20: 0.8}, "c": {20: 0.7}}
    assert names_of(find_losers(RULE, seen, seen)) == ["c"]


def test_the_order_in_which_runs_are_looked_at_changes_nothing():
    seen = {str(n): {20: float(n % 4)} for n in range(9)}
    found = names_of(find_losers(RULE, seen, seen))
    assert sorted(names_of(find_losers(RULE, seen, reversed(list(seen))))) == sorted(found)


async def test_losers_are_suspended_and_say_why():
    world = World(**HALVED)
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    assert world.outcomes() == ["Stopped", "Stopped", None]
    assert [one["spec"].get("suspend") for one in world.runs().values()] == [True, True, None]
    assert world.entry(0)["message"] == "at step 20 it was number 3 of 3, of which 1 go on"
    assert world.status["best"]["name"] == "rates-002"


async def test_a_loser_is_written_down_before_it_is_suspended():
    world = World(**HALVED)
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.look()
    assert world.outcomes() == ["Stopped", "Stopped", None]
    assert not any(one["spec"].get("suspend") for one in world.runs().values())


@pytest.mark.parametrize("after", [False, True])
async def test_an_operator_that_dies_at_any_write_stops_the_same_runs(after):
    for write in range(1, 40):
        world = World(**HALVED)
        await world.settle()
        for number, reward in enumerate(("0.1", "0.2", "0.9")):
            world.report(number, 21, reward)
        died = await world.look_killed(write, after=after)
        for number in range(3):  # what they report meanwhile decides nothing any more
            world.report(number, 22, "0.5")
        await world.settle()
        if died and write == 1 and not after:
            continue  # nothing was written: it is decided by what is reported now
        assert world.outcomes() == ["Stopped", "Stopped", None]
        assert [one["spec"].get("suspend") for one in world.runs().values()] == [True, True, None]
        if not died:
            return
    raise AssertionError("the operator does not come to rest")


async def test_a_loser_makes_room_for_one_that_waits():
    world = World(**{**NINE, **HALVED, "parallelism": 3})
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    assert len(world.made) == 5
    world.report(3, 20, "0.95")
    await world.settle()
    assert world.outcomes()[:5] == ["Stopped", "Stopped", None, None, None]
    world.report(4, 20, "0.3")
    await world.settle()
    assert world.outcomes()[:5] == ["Stopped", "Stopped", None, None, "Stopped"]


async def test_a_rung_that_was_passed_unseen_is_not_filled_in_later():
    world = World(**HALVED)
    await world.settle()
    world.report(0, 70, "0.99")
    await world.settle()
    assert world.entry(0)["rungs"] == [{"step": 60, "value": "0.99"}]


async def test_a_loser_that_somebody_resumes_is_suspended_again():
    world = World(**HALVED)
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    world.model.merge("somebody", ("rolloutruns", "ns", "rates-000"), {"spec": {"suspend": False}})
    await world.settle()
    assert world.run(0)["spec"]["suspend"] is True


@pytest.mark.parametrize(
    "reward", [None, "NaN", "inf", "1e999", "words", 7.5e400, True, [], {"a": 1}, "9" * 40]
)
async def test_a_run_without_a_finite_value_neither_loses_nor_wins(reward):
    world = World(**HALVED)
    await world.settle()
    world.report(0, 21, reward)
    world.report(1, 21, "0.2")
    world.report(2, 21, "0.9")
    await world.settle()
    assert world.outcomes() == [None, None, None]
    world.end(0)
    await world.settle()
    assert world.said("Measured") == ("False", "NothingMeasured")
    assert world.status["best"]["name"] == "rates-002"


@pytest.mark.parametrize("step", [None, -1, True, "20", 2**80, 1.5])
async def test_a_step_that_is_none_is_not_read(step):
    world = World(**HALVED)
    await world.settle()
    world.report(0, step, "0.5")
    await world.settle()
    assert "step" not in world.entry(0)
    assert "rungs" not in world.entry(0)


async def test_the_best_evaluation_is_compared_where_the_sweep_says_so():
    world = World(**HALVED, objective={"metric": "BestEvaluation"}, template=selecting())
    await world.settle()
    for number, value in enumerate(("0.3", "0.9", "0.1")):
        best = {"name": "step-000020", "step": 20, "metric": "accuracy", "value": value}
        world._say(number, {"progress": {"step": 21, "rewardMean": "0.5", "best": best}})
    await world.settle()
    assert world.outcomes() == ["Stopped", None, "Stopped"]


def selecting():
    from sweep_world import TEMPLATE

    suite = {"suite": {"builtin": {"name": "arithmetic"}}, "everySteps": 20, "selects": True}
    return {"spec": {**TEMPLATE, "evaluations": [suite]}}


async def test_a_sweep_whose_runs_have_all_failed_has_failed():
    world = World()
    await world.settle()
    for number in range(3):
        world.end(number, well=False)
    await world.settle()
    assert world.said("Failed") == ("True", "Failed")
    assert world.said("Finished") == ("True", "Failed")
    assert "OutOfMemory: so it went" in str(world.status["conditions"])


async def test_a_sweep_that_is_over_names_the_best_that_went_to_its_end_and_rests():
    world = World(**HALVED)
    await world.settle()
    for number, reward in enumerate(("0.1", "0.95", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    world.report(1, 400, "0.8")
    world.end(1)
    await world.settle()
    assert world.outcomes() == ["Stopped", "Succeeded", "Stopped"]
    assert world.status["best"] == {
        "name": "rates-001",
        "value": "0.8",
        "step": 400,
        "values": ["3e-5"],
    }
    assert world.again is None
    before = world.client.writes
    await world.look(3)
    assert world.client.writes == before
