"""A sweep that is suspended and goes on, under faults and operators that die: each run is made once, pods go, and the end is the same.

Seeds are this file's own; ``sweep_story.py SEED`` beside it tells one again.
"""

import pytest
from fresh_seeds import find_first
from sweep_story import build_sweep_story, simulate, undisturbed

KNOWN = range(6)
LONG = 300


def check(seed: int) -> None:
    life = simulate(seed)
    assert not life.broken, life.explain()


@pytest.mark.parametrize("seed", KNOWN)
def test_known_seeds(seed):
    check(seed)


@pytest.mark.slow
def test_many_fresh_seeds():
    first = find_first()
    print(f"fresh seeds from {first} on")
    for seed in range(first, first + LONG):
        check(seed)


def test_a_life_without_faults_tells_each_suspension_and_each_run():
    life = undisturbed(5)
    story = life.story
    assert not life.broken, life.explain()
    assert life.events.count("RunStarted") == story.num_runs
    assert life.events.count("RunStopped") == len(story.losers())
    assert life.events.count("RunEnded") == story.num_runs - len(story.losers())
    assert life.end["suspended"] == sorted(story.losers())
    assert life.end["labels"] == []


def test_the_known_seeds_meet_losers_people_and_two_suspensions():
    stories = [build_sweep_story(seed) for seed in KNOWN]
    assert {one.halves for one in stories} == {True, False}
    assert {one.num_runs for one in stories} == {2, 3}
    assert any(one.by_hand is not None for one in stories)
    assert any(one.suspensions == 2 for one in stories)
