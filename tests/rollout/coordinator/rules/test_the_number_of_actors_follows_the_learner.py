"""Rate matching, as pure arithmetic: who waits for whom decides how many actors a run wants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.coordinator.rules.autoscaling import (
    STEPS_SEEN,
    ActorBounds,
    ScaleState,
    StepShares,
    needed_actors,
    next_pace,
)

BOUNDS = ActorBounds(low=1, high=8, start=2)
SHARE = st.floats(0, 1)


def simulate(bounds, *, need, steps=60):
    """A run whose samples of a step cost ``need`` actors as long as the learner's work on it."""
    pace, history = ScaleState(wanted=bounds.start), []
    for _ in range(steps):
        seconds = max(need / pace.wanted, 1.0)
        shares = StepShares(
            num_actors=pace.wanted,
            learner_waits=1 - 1 / seconds,
            actors_wait=1 - need / pace.wanted / seconds,
        )
        pace = next_pace(pace, bounds, shares)
        history.append(pace.wanted)
    return history


@pytest.mark.parametrize(
    ("need", "wanted"), [(0.3, 1), (2.0, 2), (3.0, 3), (3.4, 4), (7.05, 7), (30.0, 8)]
)
def test_it_comes_to_the_number_at_which_nobody_waits(need, wanted):
    assert simulate(BOUNDS, need=need)[-1] == wanted


@given(need=st.floats(0.05, 20), low=st.integers(1, 4), more=st.integers(0, 8))
def test_it_settles_within_its_bounds_and_does_not_swing(need, low, more):
    bounds = ActorBounds(low=low, high=low + more, start=low)

    history = simulate(bounds, need=need)

    assert all(bounds.low <= wanted <= bounds.high for wanted in history)
    assert len(set(history[-20:])) == 1


@given(shares=st.lists(st.tuples(SHARE, SHARE), max_size=STEPS_SEEN - 1))
def test_a_few_steps_change_nothing(shares):
    pace = ScaleState(wanted=3)
    for learner_waits, actors_wait in shares:
        step = StepShares(num_actors=3, learner_waits=learner_waits, actors_wait=actors_wait)
        pace = next_pace(pace, BOUNDS, step)

    assert pace.wanted == 3


def test_steps_made_while_an_actor_starts_or_is_lost_do_not_count():
    pace = ScaleState(wanted=3)
    for _ in range(10):
        pace = next_pace(pace, BOUNDS, StepShares(num_actors=2, learner_waits=0.9, actors_wait=0))

    assert pace == ScaleState(wanted=3)


def test_what_is_measured_is_the_number_at_which_nobody_had_waited():
    idle_learner = StepShares(num_actors=2, learner_waits=0.5, actors_wait=0.0)
    idle_actors = StepShares(num_actors=4, learner_waits=0.0, actors_wait=0.5)
    assert (needed_actors(idle_learner), needed_actors(idle_actors)) == (4.0, 2.0)
