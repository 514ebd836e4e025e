"""Runs of a sweep are made once, under names that stay, whoever dies, deletes or stands in the way."""

import copy

import pytest
from sweep_world import PLACE, RATE, TEMPLATE, World

from rollout_api.v1alpha1.run import RolloutRun
from rollout_operator.errors import Forbidden, Refused
from rollout_operator.sweep.render import owner_reference

SIX = {
    "parameters": [
        {"field": RATE, "values": ["1e-5", "3e-5"]},
        {"field": "seed", "values": ["0", "1", "2"]},
    ]
}


async def test_every_combination_is_a_run_the_last_parameter_fastest():
    world = World(**SIX, parallelism=9)
    await world.settle()
    assert world.made == [f"rates-{number:03d}" for number in range(6)]
    found = [
        (one["spec"]["train"]["optimizer"]["adamw"]["learningRate"], one["spec"]["seed"])
        for one in world.runs().values()
    ]
    assert found == [(rate, seed) for rate in ("1e-5", "3e-5") for seed in (0, 1, 2)]
    assert world.entry(4)["values"] == ["3e-5", "1"]


async def test_a_run_is_valid_and_goes_with_its_sweep():
    world = World()
    await world.settle()
    live = world.run(0)
    parsed = RolloutRun.model_validate(
        {k: live[k] for k in ("apiVersion", "kind", "metadata", "spec")}
    )
    assert parsed.spec.train.optimizer.adamw.learning_rate == 1e-5
    sweep = world.model.get(PLACE)["metadata"]
    assert live["metadata"]["ownerReferences"] == [owner_reference("rates", sweep["uid"])]


async def test_no_more_are_at_work_than_the_sweep_says():
    world = World(**SIX, parallelism=2)
    await world.settle()
    assert len(world.made) == 2
    assert world.status["counts"] == {
        "waiting": 4,
        "running": 2,
        "suspended": 0,
        "succeeded": 0,
        "stopped": 0,
        "failed": 0,
        "deleted": 0,
    }
    world.report(0, 400, "0.5")
    world.end(0)
    await world.settle()
    assert len(world.made) == 3
    world.model.merge("somebody", PLACE, {"spec": {"parallelism": 4}})
    await world.settle()
    assert len(world.made) == 5


async def test_nothing_is_made_before_it_is_written_down():
    world = World()
    await world.look()
    assert world.made == []
    assert [one["name"] for one in world.status["runs"]] == ["rates-000", "rates-001", "rates-002"]
    assert world.said("Ready") == ("False", "Pending")


@pytest.mark.parametrize("after", [False, True])
async def test_an_operator_that_dies_at_any_write_makes_nothing_twice(after):
    for write in range(1, 40):
        world = World(**SIX, parallelism=6)
        died = await world.look_killed(write, after=after)
        await world.settle()
        assert sorted(world.made) == [f"rates-{number:03d}" for number in range(6)]
        assert len(world.runs()) == 6
        assert all(
            one["uid"] == world.run(n)["metadata"]["uid"]
            for n, one in enumerate(world.status["runs"])
        )
        if not died:
            return
    raise AssertionError("the operator does not come to rest")


async def test_a_run_that_somebody_deletes_is_not_made_again():
    world = World()
    await world.settle()
    world.delete(1)
    await world.settle()
    assert world.outcomes() == [None, "Deleted", None]
    for number in (0, 2):
        world.report(number, 400, "0.5")
        world.end(number)
    await world.settle()
    assert world.made.count("rates-001") == 1
    assert world.said("Finished") == ("True", "Succeeded")


async def test_a_run_of_the_same_name_that_takes_a_deleted_ones_place_is_not_the_sweeps():
    world = World()
    await world.settle()
    world.delete(1)
    world.put("rates-001")
    await world.settle()
    assert world.outcomes()[1] == "Deleted"


async def test_somebody_elses_run_of_that_name_is_named_and_the_others_go_on():
    world = World()
    world.put("rates-001")
    await world.settle()
    assert world.made == ["rates-000", "rates-002"]
    assert world.said("Stalled") == ("True", "FieldConflict")
    assert "rates-001" in next(c["message"] for c in world.status["conditions"])
    world.delete(1)
    await world.settle()
    assert world.made == ["rates-000", "rates-002", "rates-001"]
    assert world.said("Ready") == ("True", "Running")


async def test_a_run_that_names_another_sweep_of_this_name_as_its_owner_is_somebody_elses():
    world = World()
    world.put("rates-001", ownerReferences=[owner_reference("rates", "of-before")])
    await world.settle()
    assert world.said("Stalled") == ("True", "FieldConflict")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refused("create", 422, "admission webhook says no"), "ApiServerRefused"),
        (Forbidden("create", 403, "exceeded quota: objects"), "Forbidden"),
    ],
)
async def test_what_the_api_server_refuses_is_said_and_tried_again(error, reason):
    world = World()
    world.client.refuses["create rates-001"] = error
    await world.look(4)
    assert world.said("Stalled") == ("True", reason)
    assert error.message in str(world.status["conditions"])
    world.client.refuses.clear()
    await world.settle()
    assert sorted(world.made) == ["rates-000", "rates-001", "rates-002"]


async def test_a_template_that_later_rules_refuse_makes_no_more_runs_and_is_named():
    world = World(parallelism=1)
    await world.settle()
    worse = copy.deepcopy(TEMPLATE)
    worse["train"]["algorithm"]["grpo"]["groupSize"] = 1
    world.model.merge("an older release", PLACE, {"spec": {"template": {"spec": worse}}})
    world.report(0, 400, "0.5")
    world.end(0)
    await world.settle()
    assert world.made == ["rates-000"]
    assert world.said("Stalled") == ("True", "InvalidSpec")
    assert (
        "RolloutRun rates-001 is not made: spec.template.spec.train.algorithm.grpo.groupSize"
        in str(world.status["conditions"])
    )
    assert world.outcomes() == ["Succeeded", None, None]


async def test_a_spec_that_cannot_be_read_keeps_what_is_known_of_the_runs():
    world = World()
    await world.settle()
    world.model.merge("an older release", PLACE, {"spec": {"template": {"spec": {"train": 7}}}})
    await world.settle()
    assert world.said("Stalled") == ("True", "InvalidSpec")
    assert len(world.status["runs"]) == 3


@pytest.mark.parametrize(
    "status",
    [
        {"runs": 7},
        {"runs": [{"name": "kube-system", "values": ["1"]}]},
        {"runs": [{"name": "rates-000", "values": []}]},
        {},
    ],
)
async def test_a_status_that_somebody_has_written_is_found_again_by_the_runs(status):
    world = World(earlyStopping={"halving": {"firstStep": 20, "factor": 3}})
    await world.settle()
    for number, reward in enumerate(("0.1", "0.2", "0.9")):
        world.report(number, 21, reward)
    await world.settle()
    assert world.outcomes() == ["Stopped", "Stopped", None]
    live = world.model.get(PLACE)
    live["status"] = status
    world.model.replace("somebody", PLACE, live)
    await world.settle()
    assert world.outcomes() == ["Stopped", "Stopped", None]
    assert len(world.made) == 3
