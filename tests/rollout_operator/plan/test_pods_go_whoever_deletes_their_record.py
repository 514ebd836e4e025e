"""A run that is over, or suspended, has no pods in the end, whatever becomes of its record meanwhile."""

import pytest
from worlds import SPEC, World

NOTHING = {"coordinator": 0, "learner": 0, "actor": 0}
OVER = {"kind": "Succeeded", "reason": "Done"}


def running(**limits):
    world = World(spec={**SPEC, "limits": limits} if limits else SPEC)
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    return world


@pytest.mark.parametrize("ticks", range(4))
def test_a_finished_run_is_scaled_down_without_its_record(ticks):
    world = running()
    world.report(step=400, outcome=OVER)
    world.settle(1 + ticks)
    world.records.clear()
    world.settle()
    assert (world.replicas(), world.pods) == (NOTHING, {})


def test_a_finished_run_whose_time_to_live_is_over_loses_its_pods_before_its_children():
    world = running(ttlSecondsAfterFinished=0)
    world.report(step=400, outcome=OVER)
    world.tick()
    world.records.clear()
    for _ in range(20):
        left = dict(world.pods)
        if world.tick().remove_children:
            break
        assert left or any(world.replicas().values()) or world.plan().remove_children
    assert (world.removed, left) == (True, {})
    assert not world.pods


@pytest.mark.parametrize("ticks", range(4))
def test_a_suspended_run_says_so_when_its_pods_are_gone_and_not_when_its_record_is(ticks):
    world = running()
    world.change(suspend=True)
    world.settle(ticks)
    world.records.clear()
    for _ in range(200):
        world.tick()
        if world.condition("Suspended") == ("True", "Suspended"):
            break
    assert (world.replicas(), world.pods) == (NOTHING, {})
    world.settle()
    assert world.status["attempt"] == 1
    world.change(suspend=False)
    world.settle()
    assert (world.status["attempt"], world.condition("Ready")) == (2, ("True", "Running"))
