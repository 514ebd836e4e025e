"""What a finished run's status says depends on what is there, not on the order in which it went or was seen to go."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import SPEC, World

from rollout_operator.run.plan.model import ROLES

BRIEF = {**SPEC, "limits": {"ttlSecondsAfterFinished": 0}}
FIELDS = ("coordinator", "learner", "actors")
PARTS = ("record", *ROLES, *(f"{role} pods" for role in ROLES))


def finished(spec=BRIEF):
    """A run whose end is written; its children and pods are as they were, one of them started twice."""
    world = World(spec=spec)
    world.settle()
    world.crash("run-actors-0", 1)
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    world.tick(follow=False)
    return world


def said(world):
    conditions = [(one["type"], one["status"], one["reason"]) for one in world.status["conditions"]]
    return {field: world.status.get(field) for field in FIELDS}, conditions


def take_away(world, part):
    role = part.partition(" ")[0]
    if part == "record":
        world.records.clear()
    elif part.endswith("pods"):
        for name in [name for name, pod in world.pods.items() if pod.role == role]:
            world.lose(name)
    else:
        world.workloads.pop(role, None)


def clean_end():
    world = finished()
    world.settle()
    return said(world)


@settings(max_examples=60, deadline=None)
@given(st.permutations(PARTS), st.lists(st.booleans(), min_size=len(PARTS), max_size=len(PARTS)))
def test_the_parts_may_vanish_in_any_order_and_any_status_write_may_be_lost(parts, written):
    world = finished()
    for part, told in zip(parts, written, strict=True):
        take_away(world, part)
        world.tick(status=told, follow=False)
    world.settle()

    assert not world.children() and not world.pods
    assert said(world) == clean_end()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=6, max_size=6))
def test_the_operator_may_die_before_it_says_so_and_the_cluster_may_lag(steps):
    world = finished()
    for told, follows in steps:
        world.tick(status=told, follow=follows)
    world.settle()

    assert said(world) == clean_end()


@pytest.mark.parametrize("part", PARTS)
def test_what_is_left_of_a_finished_run_is_counted_and_nothing_is_wanted(part):
    world = finished(SPEC)
    before = world.status["actors"]["restarts"]
    take_away(world, part)
    world.tick(follow=False)

    for field in FIELDS:
        assert world.status[field]["desired"] == 0
    assert sum(world.status[field]["replicas"] for field in FIELDS) == len(world.pods)
    assert world.status["actors"]["restarts"] == before == 1


def test_an_end_counts_the_pods_there_are_as_its_evidence():
    world = World()
    world.settle()
    world.crash("run-actors-0", 1, restarts=2)
    world.report(step=3, outcome={"kind": "Failed", "reason": "RewardError"})
    world.tick(follow=False)

    assert world.counts("actors") == (1, 1)
    assert world.status["actors"]["restarts"] == 2


@pytest.mark.parametrize("role", ROLES)
def test_an_end_counts_every_role_even_where_its_children_are_missing(role):
    world = World(spec=BRIEF)
    world.settle()
    take_away(world, role)
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    world.tick(follow=False)

    assert [world.status[field]["desired"] for field in FIELDS] == [1, 1, 1]
