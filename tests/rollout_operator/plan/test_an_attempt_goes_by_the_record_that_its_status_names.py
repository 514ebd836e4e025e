"""A replica that did not know of an attempt's record may have made another one: the attempt goes on by the one it was told with."""

from dataclasses import replace

from worlds import World

from rollout_operator.run.plan.attempts import find_record, records
from rollout_operator.run.plan.writes import plan_writes

FIRST_BY_NAME = "run-0000000000"


def with_another() -> tuple[World, str]:
    """A run at work, with a second record of its attempt; the name of the first."""
    world = World()
    world.settle()
    told = world.status["configuration"]
    assert told > FIRST_BY_NAME
    world.records[FIRST_BY_NAME] = world.records[told]
    world.rendered[FIRST_BY_NAME] = world.rendered[told]
    return world, told


def test_the_record_that_was_told_of_stays_and_the_other_one_goes():
    world, told = with_another()
    wanted = world.plan().wanted
    assert wanted is not None
    assert wanted.record == told
    kept = (("StatefulSet", "run-coordinator"),)
    gone = plan_writes("run", wanted, kept, world.children(), {}).delete
    assert FIRST_BY_NAME in {one.name for one in gone}
    assert told not in {one.name for one in gone}


def test_before_one_was_told_of_it_is_the_first_by_name():
    world, _ = with_another()
    world.status["configuration"] = None
    record = find_record(world.observe(), 1)
    assert record is not None
    assert record.name == FIRST_BY_NAME


def test_the_newest_attempt_is_the_newest_whatever_was_told_of():
    world, told = with_another()
    newer = world.children()["ConfigMap", FIRST_BY_NAME]
    children = {**world.children(), ("ConfigMap", FIRST_BY_NAME): replace(newer, attempt=2)}
    found = records(replace(world.observe(), children=children))
    assert [one.name for one in found] == [FIRST_BY_NAME, told]
