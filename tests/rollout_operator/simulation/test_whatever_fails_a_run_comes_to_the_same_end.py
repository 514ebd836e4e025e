"""The operator under faults, against a model of the API server: whatever is refused, lost, late or dies, the same end.

Fresh seeds of every tree, printed; ``simulate_operator.py SEED`` beside this file tells one again. Always: pods of one
run attempt at a time, nothing of another owner touched, an end that stays, and nothing left to be done for an operator that
remembers nothing. What a real API server adds (validation, defaults, managed fields of lists) is asked in e2e/operator/failures.
"""

from __future__ import annotations

from collections import Counter

import pytest
from fresh_seeds import find_first
from model_requests import FAULTS, WATCH_FAULTS
from run_stories import ACTS, ANSWERS_FROM, ENDS, SAVES_FROM, WITHOUT_A_LEARNER, build_story
from simulate_operator import simulate, simulate_one_fault, undisturbed

LONG = 1800
BROKE_ONCE = (689868029, 396230783)
"""Fresh seeds that came to another end: one that ended while its Secret was still being put right, one that failed while it stopped."""
KNOWN = (9, 62, *range(100, 120), *BROKE_ONCE)
"""The first two: many kinds of faults, and each of a watch's. Fresh ones are explored in the long tier."""
WHOLE_LIFE = 12
"""Suspension, resumption, failure, children that outlive their run by nothing."""
SWEPT = ("killed before", "killed after", "killed, done late", "answer lost", "broken", "conflict")
STRIDE = 23


def check(seed: int) -> Counter[str]:
    life = simulate(seed)
    assert not life.broken, life.explain()
    return life.met


@pytest.mark.parametrize("seed", KNOWN)
def test_known_seeds(seed):
    assert check(seed)


@pytest.mark.parametrize("seed", range(ANSWERS_FROM, ANSWERS_FROM + 12))
def test_known_seeds_of_runs_without_a_learner(seed):
    check(seed)


@pytest.mark.parametrize(
    "seed", [SAVES_FROM + seed for seed in (4, WHOLE_LIFE, 9, 62, 100, 104, 107)]
)
def test_known_seeds_of_runs_that_are_saved_when_they_go(seed):
    check(seed)


def test_a_run_that_is_suspended_and_then_succeeds_is_saved_twice():
    seeds = (SAVES_FROM + seed for seed in range(500))
    stories = map(build_story, seeds)
    found = next(one for one in stories if (one.acts, one.end) == (("suspend",), "succeed"))
    end = undisturbed(found.seed).end
    saved = {
        place.rpartition("/")[2].split("-")[1]: child["ended"]
        for place, child in end["children"].items()
        if place.startswith("rolloutsnapshots/")
    }
    assert saved == {"suspend": "SnapshotTaken", "end": "SnapshotTaken"}
    assert end["conditions"]["SnapshotsScheduled"][1] == "SnapshotTaken"


def explore(count: int, base: int = 0) -> None:
    first = base + find_first()
    print(f"fresh seeds from {first} on")
    for seed in range(first, first + count):
        check(seed)


@pytest.mark.slow
def test_many_fresh_seeds():
    explore(LONG)


@pytest.mark.slow
def test_many_fresh_seeds_of_runs_that_are_saved_when_they_go():
    explore(LONG // 4, SAVES_FROM)


@pytest.mark.slow
def test_many_fresh_seeds_of_runs_without_a_learner():
    explore(LONG // 4, ANSWERS_FROM)


def sweep(seed: int, numbers: range) -> None:
    clean = undisturbed(seed)
    for number in numbers:
        life = simulate_one_fault(clean, SWEPT[number % len(SWEPT)], number)
        assert not life.broken, life.explain()


def test_one_fault_at_some_calls_of_a_whole_life():
    clean = undisturbed(WHOLE_LIFE)
    assert {"suspend", "fail"} <= {*clean.story.acts, clean.story.end}
    first = 1 + find_first() % (STRIDE - 1)
    print(f"every {STRIDE}th call from {first} on")
    sweep(WHOLE_LIFE, range(first, clean.num_calls, STRIDE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_one_fault_at_every_call_of_a_whole_life(kind):
    clean = undisturbed(WHOLE_LIFE)
    for number in range(1, clean.num_calls):
        life = simulate_one_fault(clean, kind, number)
        assert not life.broken, life.explain()


@pytest.mark.slow
def test_many_seeds_meet_every_fault():
    met: Counter[str] = Counter()
    for seed in range(60):
        met += check(seed)
    assert set(met) == {*FAULTS, *WATCH_FAULTS}


def test_the_seeds_meet_every_act_and_every_end():
    stories = [build_story(seed) for seed in range(200)]
    assert {act for one in stories for act in one.acts} == set(ACTS)
    assert {one.end for one in stories} == set(ENDS)


def test_the_seeds_of_runs_without_a_learner_meet_every_act_and_every_end():
    stories = [build_story(seed) for seed in range(ANSWERS_FROM, ANSWERS_FROM + 100)]
    assert {act for one in stories for act in one.acts} == set(WITHOUT_A_LEARNER)
    assert {one.end for one in stories} == set(ENDS)
