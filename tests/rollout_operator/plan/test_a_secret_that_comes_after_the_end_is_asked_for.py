"""Nobody watches Secrets: that of a finished run whose time is over is asked for, the seldomer the longer that is."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from worlds import SPEC, World

from rollout_operator.run.plan.cleanup import SEEK_SECONDS_MIN
from rollout_operator.run.plan.plan import plan_run

TTL_SECONDS = 100
HOUR = 3600.0
IN_THE_FIRST_HOUR_MAX = 8
IN_A_YEAR_MAX = 24


def over(limits=None, **world):
    """A run of which nothing is left but its object, since this moment."""
    made = World(
        spec={**SPEC, "limits": limits or {"ttlSecondsAfterFinished": TTL_SECONDS}}, **world
    )
    made.settle()
    made.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    made.settle()
    made.now += timedelta(seconds=TTL_SECONDS)
    return made


def gone(**world):
    made = over(**world)
    assert made.tick().remove_children
    return made


def plan(world, sought: datetime | None):
    return plan_run(replace(world.observe(), secret_sought=sought), world.now)


def test_an_operator_that_remembers_nothing_asks_at_its_first_look():
    world = gone()
    world.now += timedelta(days=30)
    assert plan(world, None).seek_secret
    assert not plan(world, world.now).seek_secret


def test_who_removed_it_asks_again_soon_though_nothing_wakes_it():
    world = gone()
    removed = world.now
    said = plan(world, removed)
    assert not said.seek_secret
    assert said.requeue_seconds is not None
    assert said.requeue_seconds <= SEEK_SECONDS_MIN
    world.now += timedelta(seconds=SEEK_SECONDS_MIN)
    assert plan(world, removed).seek_secret


def test_it_is_asked_for_a_bounded_number_of_times_and_rests():
    world = gone()
    began = sought = world.now
    asks, wakes = [], []
    while (age := (world.now - began).total_seconds()) < 365 * 24 * HOUR:
        said = plan(world, sought)
        if said.seek_secret:
            asks.append(age)
            sought = world.now
        if said.requeue_seconds is not None:
            wakes.append(age)
        world.now += timedelta(seconds=min(HOUR, said.requeue_seconds or HOUR))
    assert sum(age <= HOUR for age in asks) <= IN_THE_FIRST_HOUR_MAX
    assert len(asks) <= IN_A_YEAR_MAX
    assert sum(age > HOUR for age in wakes) <= IN_A_YEAR_MAX
    longest = max(late / early for early, late in pairwise(asks) if early > HOUR)
    assert longest <= 3.0  # twice as long ago, and the hour until somebody looks


def test_nothing_is_asked_for_while_more_is_left():
    world = over()
    said = plan(world, None)
    assert said.remove_children
    assert not said.seek_secret


@pytest.mark.parametrize("seconds", [0, TTL_SECONDS - 40])
def test_nothing_is_asked_for_before_its_time(seconds):
    world = over()
    world.now -= timedelta(seconds=TTL_SECONDS - seconds)
    assert not plan(world, None).seek_secret


def test_a_run_that_keeps_its_children_keeps_its_secret():
    world = World()
    world.settle()
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    world.settle()
    world.now += timedelta(days=30)
    said = plan(world, None)
    assert not said.seek_secret
    assert said.requeue_seconds is None


def test_a_run_that_is_deleted_leaves_it_to_the_garbage_collector():
    world = gone()
    world.spec = {**SPEC, "limits": {"ttlSecondsAfterFinished": 1, "ttlAction": "DeleteRun"}}
    assert plan(world, None).delete_run
