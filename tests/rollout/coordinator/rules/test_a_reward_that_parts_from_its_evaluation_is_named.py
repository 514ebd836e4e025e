"""A reward that rises while the selecting evaluation falls is named, and stops the run where that is asked for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.coordinator.plan import EvaluationPlan
from rollout.coordinator.rules.divergence import (
    TRAIN_REWARD,
    judge_divergence,
    mean_train_reward,
)
from rollout.coordinator.rules.evaluation import EvaluationResult
from rollout.types import SamplingParams

CHOOSE = EvaluationPlan(
    name="choose",
    split="selection",
    num_prompts=100,
    samples_per_prompt=1,
    sampling=SamplingParams(max_new_tokens=4),
    selects=True,
)


def result(step, value, reward, half=0.05, name="choose"):
    accuracy = {"value": value, "low": value - half, "high": value + half}
    summary = {"accuracy": accuracy, **({} if reward is None else {TRAIN_REWARD: reward})}
    return EvaluationResult(name=name, split="selection", lineage=0, step=step, summary=summary)


def judge(*results, stops=False, plan=CHOOSE):
    return judge_divergence([plan], results, stops=stops)


def test_a_reward_that_rises_while_the_evaluation_falls_is_named():
    found = judge(result(20, 0.6, 0.5), result(40, 0.3, 0.9))

    assert found.level == "warn"
    assert "from step 20 to 40 the training reward rose from 0.5 to 0.9" in found.message
    assert "accuracy of choose fell from 0.6 to 0.3" in found.message


def test_it_stops_where_that_is_asked_for():
    assert judge(result(20, 0.6, 0.5), result(40, 0.3, 0.9), stops=True).level == "stop"


@pytest.mark.parametrize(
    "last",
    [
        result(40, 0.3, 0.4),
        result(40, 0.3, 0.5),
        result(40, 0.52, 0.9),
        result(40, 0.7, 0.9),
        result(40, 0.3, None),
        result(40, 0.3, 0.9, name="other"),
    ],
    ids=["both fell", "reward stood", "intervals meet", "both rose", "no reward known", "another"],
)
def test_nothing_is_said_while_they_may_agree(last):
    assert judge(result(20, 0.6, 0.5), last).level == "none"


def test_the_best_before_is_what_the_last_is_held_against():
    slow = [result(step, 0.6 - step / 200, step / 100) for step in (0, 20, 40, 60)]

    assert judge(*slow).level == "warn"
    assert judge(*slow, result(80, 0.62, 0.9)).level == "none"


def test_an_evaluation_that_only_reports_stops_nothing():
    plan = replace(CHOOSE, selects=False)

    assert judge(result(20, 0.6, 0.5), result(40, 0.3, 0.9), plan=plan).level == "none"


def test_one_result_is_held_against_nothing():
    assert judge(result(20, 0.6, 0.5)).level == "none"
    assert judge().level == "none"


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-5, 5)), max_size=8))
def test_a_run_whose_evaluation_never_falls_is_never_stopped(drawn):
    values = sorted(value for value, _ in drawn)
    results = [
        result(step, value, reward)
        for step, (value, (_, reward)) in enumerate(zip(values, drawn, strict=True))
    ]

    assert judge(*results, stops=True).level == "none"


def test_the_reward_of_a_version_is_of_the_steps_that_led_to_it():
    recent = [{"step": n, "reward": float(n)} for n in (1, 2, 3)]

    assert mean_train_reward(recent, 2) == 1.5
    assert mean_train_reward([{"step": 1, "reward": float("nan")}], 2) is None
    assert mean_train_reward(recent, 0) is None
