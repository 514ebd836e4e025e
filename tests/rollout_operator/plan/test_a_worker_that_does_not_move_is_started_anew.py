"""The coordinator names who holds a run up; the operator starts that worker anew, once."""

from datetime import timedelta

from worlds import SPEC, World

from rollout_operator.controller.times import render_time

TWO = {**SPEC, "learner": {"nodes": 2}, "actors": {"replicas": 2}}
WORDS = "nothing has moved for 900 s; learner waits for a batch (task t/3 is with actor-1)"


def started(**limits):
    world = World(spec={**TWO, "limits": limits})
    world.settle()
    world.now += timedelta(seconds=900)
    return world


def tell(world, worker):
    stuck = {"message": WORDS, "time": render_time(world.now)}
    world.report(attempt=1, step=3, stuck=stuck | ({"worker": worker} if worker else {}))


def test_an_actor_is_deleted_alone_and_only_once():
    world = started()
    before = {name: pod.uid for name, pod in world.pods.items()}
    tell(world, "actor-1")
    world.settle()
    changed = {name for name, pod in world.pods.items() if pod.uid != before[name]}
    assert changed == {"run-actors-1"}
    assert world.condition("Ready") == ("False", "NoProgress")
    assert world.condition("Reconciling") == ("True", "NoProgress")
    assert world.notes.count("NoProgress") == 1


def test_a_learner_starts_as_a_group_and_that_costs_a_retry():
    world = started()
    tell(world, "learner")
    world.settle()
    assert world.incarnation == 2
    assert world.workloads["learner"][0].disruptions == 0
    world.settle()
    assert world.incarnation == 2


def test_retries_bound_how_often():
    world = started(retries=1)
    for _ in range(2):
        tell(world, "learner")
        world.settle()
        world.now += timedelta(seconds=900)
    assert world.condition("Stalled") == ("True", "RetriesExhausted")
    assert "nothing has moved" in world.message("Ready")


def test_without_a_name_it_is_said_and_nobody_is_touched():
    world = started()
    before = dict(world.pods)
    tell(world, None)
    world.settle()
    assert world.pods == before
    assert world.condition("Ready") == ("False", "NoProgress")
    assert world.message("Ready") == WORDS


def test_it_is_over_when_something_moves():
    world = started()
    tell(world, "actor-0")
    world.settle()
    world.report(attempt=1, step=4)
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
