"""Nobody waits for a node that is gone: which pods were deleted without it, and why, is an event, once."""

from dataclasses import replace
from datetime import timedelta

import pytest
from worlds import World

from rollout_operator.cache.children import Node
from rollout_operator.run.events import build_event
from rollout_operator.run.plan.status.events import build_deletion_events


def told(world):
    wanted = world.plan().wanted
    assert wanted is not None
    return build_deletion_events(wanted.deletions)


def running(**nodes):
    world = World(watches_nodes=True, nodes=nodes or {"node-a": Node(name="node-a", version=1)})
    world.settle()
    return world


def test_a_node_that_is_gone_is_one_event_with_the_names_of_its_pods():
    world = running()
    world.nodes = {}
    [note] = told(world)
    assert (note.type, note.reason.value) == ("Warning", "PodForceDeleted")
    names = "run-actors-0, run-coordinator-0, run-learner-0"
    assert note.message == f"node node-a is gone: deleted by force: {names}"


def test_each_node_is_an_event_of_its_own():
    world = running()
    away = replace(world.pods["run-actors-0"], node="node-b")
    world.pods["run-actors-0"] = away
    world.nodes = {}
    assert [note.message for note in told(world)] == [
        "node node-a is gone: deleted by force: run-coordinator-0, run-learner-0",
        "node node-b is gone: deleted by force: run-actors-0",
    ]


def test_a_node_that_is_out_of_service_is_said_to_be():
    world = running()
    world.pods["run-actors-0"] = replace(world.pods["run-actors-0"], ready=False)
    world.nodes = {"node-a": Node(name="node-a", version=2, out_of_service=True)}
    [note] = told(world)
    assert note.message == "node node-a is out of service: deleted by force: run-actors-0"


@pytest.mark.parametrize("silent", [True, False])
def test_pods_that_go_in_order_are_none(silent):
    world = running()
    world.nodes = {"node-a": Node(name="node-a", version=2, unready_since=world.now)}
    world.now += timedelta(seconds=121 if silent else 0)
    assert told(world) == ()


def test_a_look_that_is_made_again_tells_it_once_and_other_pods_of_the_node_anew():
    world = running()
    world.nodes = {}

    def names():
        observed = world.observe()
        notes = told(world)
        return [build_event(observed, 1, one, "i", world.now)["metadata"]["name"] for one in notes]

    first = names()
    assert names() == first
    world.pods["run-learner-0"] = replace(world.pods["run-learner-0"], uid="another")
    assert names() != first
