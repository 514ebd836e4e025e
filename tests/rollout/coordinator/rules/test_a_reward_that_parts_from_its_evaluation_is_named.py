"""A reward that rises while the selecting evaluation falls is named, and stops the run where that is asked for."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.coordinator.plan import EvaluationPlan
from rollout.coordinator.rules.divergence import (
    FALSE_ALARMS,
    TRAIN_REWARD,
    judge_divergence,
    least_deviations,
    mean_train_reward,
)
from rollout.coordinator.rules.evaluation import EvaluationResult
from rollout.evaluations.statistics import wilson
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


def test_what_has_parted_is_said_until_it_has_come_back():
    fell = [result(0, 0.6, 0.1), result(20, 0.3, 0.2)]
    low = [result(40 + 20 * n, 0.32, 0.3) for n in range(40)]

    said = judge(*fell, *low)
    assert said.level == "warn"
    assert "from step 0" in said.message
    assert judge(*fell, *low, result(9_000, 0.56, 0.4)).level == "none"


def test_a_metric_without_an_interval_says_nothing():
    bare = [
        replace(one, summary={**one.summary, "accuracy": one.summary["accuracy"]["value"]})
        for one in (result(20, 0.6, 0.5), result(40, 0.3, 0.9))
    ]

    assert judge(*bare).level == "none"


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


@given(st.integers(2, 5_000), st.integers(1, 9))
def test_later_looks_and_more_of_them_ask_for_more(num_results, num_before):
    least = least_deviations(num_results, num_before)

    assert least < least_deviations(num_results + 1, num_before)
    assert least < least_deviations(num_results, num_before + 1)
    assert 2.5 < least < 7


def test_what_all_looks_may_spend_together_is_the_share_of_false_alarms():
    spent = [
        2 * least_tail(least_deviations(n, min(n - 1, 9))) / 2 * min(n - 1, 9)
        for n in range(2, 3_000)
    ]

    assert FALSE_ALARMS * 0.99 < math.fsum(spent) < FALSE_ALARMS * 1.0001


def least_tail(deviations):
    return math.erfc(deviations / math.sqrt(2)) / 2


def noise(draw, num_prompts, share, num_results):
    """Results of a policy that stays as good as it was, whose training reward rises all the time: the worst case."""
    for step in range(num_results):
        right = sum(draw.random() < share for _ in range(num_prompts))
        found = wilson(right / num_prompts, num_prompts)
        accuracy = {"value": found.value, "low": found.low, "high": found.high}
        summary = {"accuracy": accuracy, TRAIN_REWARD: float(step)}
        yield EvaluationResult(
            name="choose", split="selection", lineage=0, step=step, summary=summary
        )


def count_alarms(num_runs, num_prompts, share, num_results=25):
    draw = random.Random(f"{num_prompts} {share}")
    runs = ([*noise(draw, num_prompts, share, num_results)] for _ in range(num_runs))
    return sum(
        any(judge(*run[:end]).level != "none" for end in range(2, num_results + 1)) for run in runs
    )


def test_of_sixty_runs_of_noise_alone_none_is_named():
    assert count_alarms(60, 50, 0.6) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("num_prompts", "share"), [(20, 0.6), (64, 0.3), (250, 0.9)])
def test_fewer_than_one_run_of_noise_in_a_hundred_is_named(num_prompts, share):
    assert count_alarms(1_000, num_prompts, share) < 10


@pytest.mark.slow
def test_a_policy_that_loses_a_fifth_is_named_within_a_few_results():
    draw, named = random.Random(5), 0
    for _ in range(200):
        shares = [0.7] * 5 + [0.5] * 5
        runs = [next(noise(draw, 250, share, 1)) for share in shares]
        run = [
            replace(one, step=step, summary={**one.summary, TRAIN_REWARD: float(step)})
            for step, one in enumerate(runs)
        ]
        named += judge(*run).level != "none"

    assert named >= 180
