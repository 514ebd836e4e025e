"""An edit that is let through between a resume and the status that tells of the attempt is not lost."""

import json

import pytest
from worlds import SPEC, World

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
    assert world.condition("Reconciling") == ("True", "Starting")
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
