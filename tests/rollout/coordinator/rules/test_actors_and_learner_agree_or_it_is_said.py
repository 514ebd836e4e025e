"""The train/serve monitor: it says so, or stops with everything saved; it never changes what is learned."""

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed

from rollout.coordinator.rules.drift import STEPS, DriftBounds, judge_drift

BOUNDS = DriftBounds(warn=0.05, stop=0.5)


def metrics(*values):
    return [{"mismatch_kl": value} for value in values]


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ((0.001,) * 5, "none"),
        ((0.2,) * (STEPS - 1), "none"),
        ((0.2, 0.2, 0.01), "none"),
        ((0.001, 0.2, 0.2, 0.2), "warn"),
        ((9.0, 9.0, 0.2), "warn"),
        ((0.6,) * STEPS, "stop"),
    ],
)
def test_three_steps_in_a_row_count(values, level):
    assert judge_drift(metrics(*values), BOUNDS).level == level


def test_without_a_bound_to_stop_at_it_only_warns():
    drift = judge_drift(metrics(9.0, 9.0, 9.0), DriftBounds(warn=0.05))

    assert drift.level == "warn"
    assert "limits.mismatchKlWarn (0.05)" in drift.message


def test_runs_that_learn_from_rows_do_not_drift():
    assert judge_drift([{"loss": 1.0}] * STEPS, BOUNDS).level == "none"


def take_steps(client, bench, kl, count):
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    for _ in range(count):
        actor.work()
        learner.commit(learner.ask(), metrics={"loss": 0.1, "mismatch_kl": kl})
    return learner


def agreement(client):
    return next(c for c in client.status().conditions if c.type == "LogprobsAgree")


def test_the_status_says_so_and_the_run_goes_on(bench):
    client = bench.start(changed(PLAN, steps_max=9, drift=BOUNDS))

    take_steps(client, bench, kl=0.1, count=STEPS)

    assert (agreement(client).status, agreement(client).reason) == (False, "LogprobsDrift")
    assert client.status().phase == "Running"


def test_past_the_second_bound_the_run_stops_with_what_it_committed(bench):
    client = bench.start(changed(PLAN, steps_max=9, drift=BOUNDS))

    take_steps(client, bench, kl=0.9, count=STEPS)

    status = client.status()
    assert (status.phase, status.step) == ("Stopping", STEPS)
    assert "limits.mismatchKlStop" in agreement(client).message


def retokenised(client):
    return [c for c in client.status().conditions if c.type == "TokensRoundTrip"]


def take_retokenised(client, bench, share):
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    for _ in range(STEPS):
        actor.work()
        learner.commit(learner.ask(), metrics={"loss": 0.1, "retokenised_share": share})


def test_texts_that_are_not_their_tokens_are_told_of_and_the_run_goes_on(bench):
    client = bench.start(changed(PLAN, steps_max=9, retokenised=DriftBounds(warn=0.2)))
    take_retokenised(client, bench, 0.1)
    assert retokenised(client) == []
    take_retokenised(client, bench, 0.3)
    (told,) = retokenised(client)
    assert (told.status, told.reason) == (False, "TokenizationMismatch")
    assert "limits.retokenisedWarn (0.2)" in told.message
    assert client.status().phase == "Running"


def test_past_a_bound_for_texts_the_run_stops_where_somebody_set_one(bench):
    client = bench.start(changed(PLAN, steps_max=9, retokenised=DriftBounds(warn=0.2, stop=0.5)))
    take_retokenised(client, bench, 0.9)
    assert client.status().phase == "Stopping"
