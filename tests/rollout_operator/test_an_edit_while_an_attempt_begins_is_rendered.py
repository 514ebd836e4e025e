"""An edit of what pods are made from is never lost, whenever it is let through: the pods go, and an attempt of it begins."""

import json

import pytest
from worlds import SPEC, World

from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_operator.run.plan.settled import settled_digest
from rollout_operator.run.render import contract


def edited(seconds=7):
    return {"train": {**SPEC["train"], "maxSteps": 400 + seconds}}


def rest(world):
    """Time for the cut, and for every pod to go."""
    for _ in range(40):
        world.tick(5)


def steps(world):
    """What the pods of the newest attempt read."""
    [record] = world.records.values()
    order = json.loads(record.config_map["data"][contract.ORDER_FILE])
    return order["spec"]["train"]["maxSteps"]


def resumed():
    """The operator has rendered the second attempt, and died before it told of it."""
    world = World()
    world.settle()
    world.change(suspend=True)
    rest(world)
    assert world.condition("Suspended") == ("True", "Suspended")
    world.change(suspend=False)
    world.tick(status=False)
    assert (world.status["attempt"], world.replicas()["coordinator"]) == (1, 1)
    return world


@pytest.mark.parametrize("ticks", [0, 1, 5])
def test_an_edit_after_a_resume_is_what_the_pods_read(ticks):
    world = resumed()
    for _ in range(ticks):
        world.tick(status=False)
    world.change(**edited())
    world.settle(30)
    assert steps(world) == 407
    assert world.condition("Ready") == ("True", "Running")
    assert {pod.attempt for pod in world.pods.values()} == {world.status["attempt"]}


def test_an_edit_before_the_first_status_is_what_the_pods_read():
    world = World()
    world.tick(status=False, follow=False)
    world.change(**edited())
    world.settle(30)
    assert (steps(world), world.condition("Ready")) == (407, ("True", "Running"))


def test_pods_of_the_attempt_that_was_overtaken_go_first():
    world = resumed()
    world.change(**edited())
    world.tick()
    assert world.condition("Reconciling") == ("True", "Draining")
    assert "begins anew" in world.message("Ready")
    assert (world.replicas()["coordinator"], steps(world)) == (0, 400)


def test_a_suspension_meanwhile_is_a_suspension():
    world = resumed()
    world.change(suspend=True)
    rest(world)
    assert (world.condition("Suspended"), world.pods) == (("True", "Suspended"), {})
    world.change(suspend=False, **edited())
    world.settle(30)
    assert steps(world) == 407


def test_without_an_edit_the_attempt_goes_on_as_it_was_rendered():
    world = resumed()
    world.settle(30)
    assert (world.status["attempt"], world.condition("Ready")) == (2, ("True", "Running"))


def test_what_is_told_to_a_living_attempt_counts_from_what_it_was_rendered_from():
    world = World()
    world.settle()
    assert world.status["settingsGeneration"] == 1
    world.change(limits={"retries": 9})
    world.settle()
    assert (world.settings, world.status["attempt"]) == ([2], 1)


EDITED = {"env": [{"name": "EDITED", "value": "yes"}]}


def taken_back():
    """Suspended, edited and resumed before the operator looked."""
    world = World()
    world.settle()
    world.change(suspend=True)
    world.change(suspend=False, **EDITED)
    return world


def test_a_suspension_that_was_taken_back_with_an_edit_begins_anew_after_the_cut():
    world = taken_back()
    world.tick()
    assert world.stops == 1
    assert world.condition("Reconciling") == ("True", "Draining")
    assert (world.status["attempt"], len(world.pods)) == (1, 3)
    rest(world)
    assert world.status["attempt"] == 2
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert world.condition("Ready") == ("True", "Running")
    assert "Suspended" not in {one["type"] for one in world.status["conditions"]}


def test_no_pod_of_the_new_settings_lives_beside_one_of_the_old():
    world = taken_back()
    for _ in range(60):
        world.tick(5)
        assert len({pod.attempt for pod in world.pods.values()}) <= 1


def test_an_edit_with_the_suspension_is_what_the_next_attempt_reads():
    world = World()
    world.settle()
    world.change(suspend=True, **EDITED)
    rest(world)
    assert world.condition("Suspended") == ("True", "Suspended")
    world.change(suspend=False)
    world.settle(30)
    [record] = world.records.values()
    assert "EDITED" in record.config_map["data"][contract.ORDER_FILE]
    assert world.status["attempt"] == 2


def test_the_time_of_the_attempt_that_an_edit_ended_counts():
    world = taken_back()
    rest(world)
    began = world.status["activeSeconds"]
    assert began >= 12
    world.settle()
    assert world.status["activeSeconds"] == began


def test_live_settings_and_a_suspension_that_was_taken_back_change_no_attempt():
    world = World()
    world.settle()
    world.change(suspend=True)
    world.change(suspend=False, actors={"replicas": 2}, **edited())
    world.settle(30)
    assert (world.status["attempt"], world.settings[-1]) == (1, world.generation)


def test_a_suspension_that_was_taken_back_after_the_cut_begins_anew():
    world = World()
    world.settle()
    world.change(suspend=True)
    world.tick()
    world.report(attempt=1, step=3, outcome={"kind": "Stopped", "reason": "Stopped"})
    world.change(suspend=False)
    rest(world)
    assert world.status["attempt"] == 2
    assert world.condition("Ready") == ("True", "Running")


def test_a_digest_of_another_schema_says_nothing_of_an_edit():
    world = World()
    world.settle()
    [name] = world.records
    generation, settled = world.rendered[name]
    world.rendered[name] = (generation, "0123" + settled[4:])
    world.change(suspend=True)
    world.change(suspend=False, **EDITED)
    world.settle(30)
    assert world.status["attempt"] == 1


def test_a_scale_that_writes_defaults_out_is_no_edit():
    spec = RolloutRunSpec.model_validate(SPEC)
    filled = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    filled["actors"]["replicas"] = 7
    assert settled_digest(RolloutRunSpec.model_validate(filled)) == settled_digest(spec)
