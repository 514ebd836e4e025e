"""What takes a loser's place begins with a snapshot of the winner, under settings beside the winner's, once and whoever dies."""

import pytest
from sweep_world import HALVED, RATE, World

from rollout_api.sweeps.forking import explore, is_explored
from rollout_api.v1alpha1.sweep import SweepParameter

FORKED = {**HALVED, "forks": {"max": 3}}
LIST = SweepParameter.model_validate({"field": RATE, "values": ["1", "2", "3"]})
RANGE = SweepParameter.model_validate({"field": RATE, "range": {"low": "1e-6", "high": "1e-3"}})
SEED = SweepParameter.model_validate({"field": "seed", "values": ["0", "1"]})
STALE = SweepParameter.model_validate(
    {"field": "train.maxStaleness", "range": {"low": "0", "high": "4"}}
)


async def lost(**spec):
    world = World(**{**FORKED, **spec})
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    return world


@pytest.mark.parametrize(
    ("field", "taken"),
    [
        (RATE, True),
        ("train.rewards[0].weight", True),
        ("train.maxStaleness", True),
        ("train.algorithm.grpo.clipHigh", True),
        ("train.algorithm.grpo.groupSize", False),
        ("train.optimizers", False),
        ("train.sampling.temperature", False),
        ("seed", False),
        ("model.revision", False),
    ],
)
def test_only_what_a_begun_run_may_change_is_explored(field, taken):
    assert is_explored(field) is taken


def test_a_fork_takes_the_value_beside_and_turns_at_an_end():
    names = [f"s-f{number:03d}" for number in range(1, 20)]
    assert {explore([LIST], ("2",), name) for name in names} == {("1",), ("3",)}
    assert {explore([LIST], ("1",), name) for name in names} == {("2",)}
    assert {explore([LIST], ("3",), name) for name in names} == {("2",)}


def test_a_number_goes_by_a_factor_within_its_bounds():
    names = [f"s-f{number:03d}" for number in range(1, 20)]
    assert {explore([RANGE], ("1e-4",), name) for name in names} == {("8e-05",), ("0.000125",)}
    assert explore([RANGE], ("1e-3",), names[0])[0] in {"0.0008", "0.001"}
    assert {explore([STALE], ("1",), name) for name in names} == {("0",), ("2",)}
    assert {explore([STALE], ("4",), name) for name in names} <= {("3",), ("4",)}


def test_what_is_not_explored_stays_the_winners():
    assert explore([SEED, LIST], ("1", "2"), "s-f001")[0] == "1"


async def test_a_loser_is_written_down_a_snapshot_is_made_and_the_fork_begins_with_it():
    world = await lost()
    assert world.outcomes() == ["Stopped", "Stopped", None, None, None]
    forks = world.status["runs"][3:]
    assert [one["name"] for one in forks] == ["rates-f001", "rates-f002"]
    assert all(one["forkedFrom"] == {"name": "rates-002", "step": 21} for one in forks)
    assert all(one["values"] == ["3e-5"] for one in forks)
    snapshot = world.snapshot(1)
    winner = world.run(2)["metadata"]
    assert snapshot["spec"]["source"] == {"run": {"name": "rates-002", "uid": winner["uid"]}}
    assert snapshot["spec"]["deletionPolicy"] == "Delete"
    assert "rates-f001" not in world.runs()
    world.save(1)
    world.save(2)
    await world.settle()
    fork = world.runs()["rates-f001"]["spec"]
    assert fork["restoreFrom"] == {"snapshotRef": {"name": "rates-f001"}}
    assert fork["train"]["optimizer"]["adamw"]["learningRate"] == "3e-5"


async def test_a_fork_holds_the_place_of_its_loser_while_its_snapshot_is_made():
    waits = {"parameters": [{"field": RATE, "values": [f"{n}e-5" for n in range(1, 8)]}]}
    world = await lost(**waits)
    assert world.status["counts"]["running"] == 1
    assert [name for name in world.made if "-f" not in name] == [f"rates-{n:03d}" for n in range(3)]


async def test_no_more_are_forked_than_the_sweep_says():
    world = await lost(forks={"max": 1})
    assert [one["name"] for one in world.status["runs"][3:]] == ["rates-f001"]


async def test_a_fork_is_compared_at_rungs_past_its_beginning_only():
    world = await lost()
    for number in (1, 2):
        world.save(number)
    await world.settle()
    world.report("f001", 22, "0.95")
    await world.settle()
    assert "rungs" not in world.status["runs"][3]
    world.report("f001", 61, "0.95")
    await world.settle()
    assert world.status["runs"][3]["rungs"] == [{"step": 60, "value": "0.95"}]


@pytest.mark.parametrize("after", [False, True])
async def test_an_operator_that_dies_at_any_write_forks_the_same_runs_once(after):
    for write in range(1, 60):
        world = World(**FORKED)
        await world.settle()
        for number, reward in enumerate(("0.1", "0.2", "0.9")):
            world.report(number, 21, reward)
        died = await world.look_killed(write, after=after)
        await world.settle()
        for number in (1, 2):
            world.save(number)
        died |= await world.look_killed(write, after=after)
        await world.settle()
        assert sorted(world.made) == sorted(
            ["rates-000", "rates-001", "rates-002", *["rates-f001", "rates-f002"] * 2]
        )
        assert [one["forkedFrom"]["name"] for one in world.status["runs"][3:]] == ["rates-002"] * 2
        if not died:
            return
    raise AssertionError("the operator does not come to rest")


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (
            {"type": "Failed", "reason": "RunGone", "message": "it has ended"},
            "RunGone: it has ended",
        ),
        ({"type": "Ready", "reason": "SnapshotTaken", "message": "m"}, "lies on a volume"),
    ],
)
async def test_a_fork_whose_snapshot_never_will_be_fails_and_the_sweep_goes_on(condition, words):
    world = await lost()
    world.say_snapshot(1, {"conditions": [{**condition, "status": "True"}]})
    world.save(2)
    await world.settle()
    assert world.outcomes() == ["Stopped", "Stopped", None, "Failed", None]
    assert words in world.status["runs"][3]["message"]
    for number in (2, "f002"):
        world.report(number, 400, "0.9")
        world.end(number)
    await world.settle()
    assert world.said("Finished") == ("True", "Succeeded")


async def test_a_snapshot_of_somebody_else_is_not_begun_with():
    world = World(**FORKED)
    world.put("rates-f001", plural="rolloutsnapshots", kind="RolloutSnapshot")
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    assert world.status["runs"][3]["outcome"] == "Failed"
    assert "not this RolloutSweep's" in world.status["runs"][3]["message"]


async def test_a_winner_that_is_deleted_before_it_is_saved_fails_its_fork():
    world = World(**FORKED)
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.look()
    world.delete(2)
    await world.settle()
    assert world.outcomes() == ["Stopped", "Stopped", "Deleted", "Failed", "Failed"]


async def test_forks_are_found_again_when_the_status_is_lost():
    world = await lost()
    for number in (1, 2):
        world.save(number)
    await world.settle()
    world.forget()
    await world.settle()
    assert [one["name"] for one in world.status["runs"][3:]] == ["rates-f001", "rates-f002"]
    assert world.outcomes() == ["Stopped", "Stopped", None, None, None]
    assert world.status["runs"][3]["values"] == ["3e-5"]
    assert world.status["runs"][3]["forkedFrom"]["name"] == "rates-002"
