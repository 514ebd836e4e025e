"""A gate looks at the low end of the interval, on its own split, at the last version; a warning is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coordinator_kit import HELDOUT, PLAN, FakeActor, FakeLearner, run_to_end, wait_for_outcome
from plans import changed

from rollout.coordinator.plan import Gate
from rollout.coordinator.rules.evaluation import EvaluationResult, check_gates, choose_best


def gated(**changes):
    return replace(HELDOUT, gate=Gate(metric="accuracy", lower_bound=0.9, fails=True), **changes)


def result(step=4, value=0.95, low=0.92, **changes):
    interval = {"value": value, "low": low, "high": 1.0}
    fields = {"name": HELDOUT.name, "split": HELDOUT.split, "lineage": 0, "step": step}
    return EvaluationResult(**{**fields, **changes}, summary={"accuracy": interval})


def test_a_value_above_the_bound_is_not_enough_when_its_low_end_is_below():
    [missed] = check_gates([gated()], [result(value=0.95, low=0.85)], 4)

    assert missed.fails
    assert "low end of accuracy is 0.85, the gate wants 0.9" in missed.message


def test_a_low_end_on_the_bound_passes():
    assert check_gates([gated()], [result(low=0.9)], 4) == ()


def test_only_the_last_version_counts():
    results = [result(step=2, low=0.1), result(step=4, low=0.95)]

    assert check_gates([gated()], results, 4) == ()


def test_the_other_split_has_no_say():
    other = "report" if HELDOUT.split == "selection" else "selection"

    assert check_gates([gated()], [result(split=other, low=0.0)], 4) == ()


def test_a_metric_that_was_never_measured_misses():
    plan = replace(HELDOUT, gate=Gate(metric="pass@4", lower_bound=0.1, fails=True))

    [missed] = check_gates([plan], [result()], 4)
    assert "low end of pass@4 is nan" in missed.message


def test_the_best_is_chosen_on_the_selecting_evaluation_alone_and_the_earliest_of_equals():
    report = replace(HELDOUT, name="final", split="report", selects=False)
    results = [
        result(step=2, value=0.8),
        result(step=3, value=0.8),
        result(step=4, value=0.7),
        result(step=4, value=1.0, name="final", split="report"),
    ]

    best = choose_best([HELDOUT, report], results)

    assert best is not None
    assert (best.result.step, best.value) == (2, 0.8)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_gate_that_warns_lets_the_run_succeed_and_says_so(bench, reward):
    warns = replace(
        HELDOUT,
        at_start=False,
        every_steps=None,
        gate=Gate(metric="accuracy", lower_bound=0.01, fails=False),
    )
    client = bench.start(changed(PLAN, steps_max=1, evaluations=(warns,)))
    learner = FakeLearner(client, bench.store)
    actor = FakeActor(client, reward=lambda task, sample: reward if task.kind == "eval" else 1.0)
    run_to_end(actor, learner)
    actor.work()
    learner.finish()

    outcome = wait_for_outcome(client)

    assert outcome.kind == "Succeeded"
    assert ("gate missed: heldout: low end of accuracy" in outcome.message) == (reward == 0.0)
