"""Two replicas of the operator, of which one or both believe they lead: the run comes to the end that it has without any fault.

What is drawn: which replica is killed, told to end or frozen, whose clock is slow or fast, whose Lease is out of reach,
whose cache is stale, and which requests are refused, lost, done late, or are their sender's last. Always: with honest clocks
no write begins while the other one holds the Lease; every write is bound to the version that was seen; neither undoes what the
other wrote; and all that holds of one operator.
"""

from collections import Counter

import pytest
from fresh_seeds import find_first
from replicas import DISTURBANCES
from run_stories import (
    ANSWERS_FROM,
    BOTH_WRITE,
    MADE_AGAIN,
    MIXED_FROM,
    PAIRS_FROM,
    RECORD_LOST,
    SHIFTED_FROM,
    THAWED,
)
from simulate_operator import Life, simulate

LONG = 600


def check(seed: int) -> Life:
    life = simulate(PAIRS_FROM + seed)
    assert not life.broken, life.explain()
    return life


@pytest.mark.parametrize("seed", (*range(6), *BOTH_WRITE))
def test_known_seeds(seed):
    check(seed)


@pytest.mark.parametrize("seed", range(ANSWERS_FROM, ANSWERS_FROM + 3))
def test_known_seeds_of_runs_without_a_learner(seed):
    check(seed)


@pytest.mark.parametrize("seed", (*MADE_AGAIN, 12, 28))
def test_known_seeds_of_shifted_requests(seed):
    life = check(SHIFTED_FROM + seed)
    assert life.num_overlaps


def test_an_attempt_whose_record_nobody_remembers_is_over():
    check(SHIFTED_FROM + RECORD_LOST)


def test_who_reads_that_another_one_leads_takes_nothing_back_of_what_that_one_said():
    life = check(SHIFTED_FROM + THAWED)
    assert len(life.writers) > 2
    assert life.num_overlaps


@pytest.mark.parametrize("seed", range(3))
def test_known_seeds_of_requests_that_overtake_each_other(seed):
    check(MIXED_FROM + seed)


def test_the_other_one_goes_on_and_for_a_while_both_write():
    life = check(BOTH_WRITE[1])
    assert len(life.writers) > 1
    assert life.num_overlaps


@pytest.mark.slow
def test_many_seeds_meet_every_disturbance():
    met: Counter[str] = Counter()
    for seed in range(100, 140):
        met += check(seed).met
    assert set(met) >= DISTURBANCES.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "count"), [(0, LONG), (MIXED_FROM, LONG // 4)])
def test_many_fresh_seeds(family, count):
    """Of shifted requests none are fresh: they tell nothing that fresh seeds of the first family do not."""
    first = family + find_first()
    print(f"fresh seeds from {PAIRS_FROM + first} on")
    for seed in range(first, first + count):
        check(seed)
