import math
import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.evaluations.statistics import (
    Z_95,
    ks_measured,
    mean_interval,
    pass_at_k,
    summarise,
    wilson,
)


@pytest.mark.parametrize(
    ("correct", "trials", "low", "high"),
    [
        (8, 10, 0.4901625, 0.9433178),
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (1, 1, 0.2065493, 1.0),
        (900, 1000, 0.8798480, 0.9170907),
        (50, 100, 0.4038315, 0.5961685),
    ],
)
def test_one_sample_a_prompt_gives_wilsons_interval(correct, trials, low, high):
    rewards = [[1.0]] * correct + [[0.0]] * (trials - correct)

    got = summarise(rewards)["accuracy"]

    assert got["value"] == pytest.approx(correct / trials)
    assert got["low"] == pytest.approx(low, abs=1e-6)
    assert got["high"] == pytest.approx(high, abs=1e-6)


@given(st.integers(1, 2000), st.data())
def test_the_ends_are_where_the_score_test_turns(trials, data):
    """Wilson's ends p solve (share - p)^2 = z^2 p (1 - p) / n: the definition, not the formula."""
    share = data.draw(st.integers(0, trials)) / trials

    got = wilson(share, trials)

    for end in (got.low, got.high):
        assert (share - end) ** 2 == pytest.approx(Z_95**2 * end * (1 - end) / trials, abs=1e-12)


def test_samples_that_all_agree_count_once_a_prompt():
    alone = summarise([[1.0]] * 8 + [[0.0]] * 2)["accuracy"]
    repeated = summarise([[1.0] * 16] * 8 + [[0.0] * 16] * 2)["accuracy"]

    assert repeated == pytest.approx(alone)


def test_independent_samples_count_nearly_one_by_one():
    draw = random.Random(0)
    rewards = [[float(draw.random() < 0.7) for _ in range(8)] for _ in range(400)]

    got = summarise(rewards)["accuracy"]
    plain = wilson(got["value"], 3200)

    assert got["high"] - got["low"] == pytest.approx(plain.high - plain.low, rel=0.15)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """400 evaluations of 60 prompts x 4 samples, prompts of different difficulty: 95 % +- 3 errors."""
    draw = random.Random(1)
    covered = 0
    for _ in range(400):
        chances = [draw.betavariate(2, 1) for _ in range(60)]
        rewards = [[float(draw.random() < p) for _ in range(4)] for p in chances]
        got = summarise(rewards)["accuracy"]
        covered += got["low"] <= 2 / 3 <= got["high"]

    assert 400 * 0.95 - 3 * math.sqrt(400 * 0.05 * 0.95) < covered


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1, max_size=30)
)
def test_every_interval_holds_its_value_inside_0_and_1(rewards):
    for name, metric in summarise(rewards).items():
        if isinstance(metric, dict):
            assert 0 <= metric["low"] <= metric["value"] <= metric["high"] <= 1, name


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(n, data):
    correct = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    samples = [1] * correct + [0] * (n - correct)

    subsets = list(combinations(samples, k))

    assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (10, 3, 1, 0.3),
        (10, 3, 5, 1 - 21 / 252),
        (10, 0, 10, 0.0),
        (10, 6, 5, 1.0),
        (200, 1, 100, 0.5),
    ],
)
def test_pass_at_k_by_hand(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1)])
def test_pass_at_k_needs_enough_samples(n, c, k):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, c, k)


def test_pass_at_1_is_accuracy_and_grows_with_k():
    got = summarise([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0] * 4])

    assert got["pass@1"]["value"] == pytest.approx(got["accuracy"]["value"])
    values = [got[f"pass@{k}"]["value"] for k in (1, 2, 4)]
    assert values == pytest.approx([0.25, (0.5 + 5 / 6) / 3, 2 / 3])
    assert got["num_samples"] == 12


@pytest.mark.parametrize(
    ("samples", "ks"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (100, (1, 2, 4, 8, 16, 32, 64, 100)),
    ],
)
def test_k_doubles_up_to_the_number_of_samples(samples, ks):
    got = summarise([[1.0] * samples, [0.0] * samples])

    assert ks_measured(samples) == ks
    assert [name for name in got if name.startswith("pass@")] == [f"pass@{k}" for k in ks]


def test_pass_at_k_counts_prompts_first():
    # 20 prompts answered all alike, 4 times each: as certain as 20 answers, not as 80.
    got = summarise([[float(prompt % 2)] * 4 for prompt in range(20)])

    alone = summarise([[float(prompt % 2)] for prompt in range(20)])
    for k in (1, 2, 4):
        assert got[f"pass@{k}"] == pytest.approx(alone["accuracy"])


@given(st.integers(1, 16), st.integers(2, 40), st.integers(0, 2**32))
def test_pass_at_k_never_falls_with_k(samples, prompts, seed):
    draw = random.Random(seed)
    got = summarise([[float(draw.random() < 0.3) for _ in range(samples)] for _ in range(prompts)])
    values = [got[f"pass@{k}"]["value"] for k in ks_measured(samples)]

    assert all(after >= before - 1e-12 for before, after in pairwise(values))
    for k in ks_measured(samples):
        found = got[f"pass@{k}"]
        assert 0 <= found["low"] <= found["value"] <= found["high"] <= 1


def test_pass_at_k_stops_at_the_fewest_samples():
    assert "pass@3" not in summarise([[1.0, 1.0, 0.0], [1.0, 0.0]])


def test_half_a_reward_is_correct_and_the_mean_is_kept():
    got = summarise([[0.5], [0.49], [1.2]])

    assert got["accuracy"]["value"] == pytest.approx(2 / 3)
    assert got["reward"] == pytest.approx(0.73)


@pytest.mark.parametrize("rewards", [[], [[]], [[1.0], []]])
def test_an_evaluation_without_samples_has_no_summary(rewards):
    with pytest.raises(ValueError, match="at least one sample"):
        summarise(rewards)


def test_an_average_of_nothing_is_a_mistake():
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
