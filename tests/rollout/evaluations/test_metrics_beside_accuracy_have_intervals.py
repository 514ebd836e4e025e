import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.environments.musique_answers import read_answer, score_answer, token_f1
from rollout.errors import RewardError
from rollout.evaluations.metrics import Metric, measure
from rollout.evaluations.scoring.musique import MusiqueScore
from rollout.evaluations.statistics import wilson
from rollout.rewards.source import RewardSource
from rollout.rewards.values import check_values
from rollout.types import Completion

STRICT = Metric(name="strict", part="g/strict")
INST = Metric(name="inst", part="i/followed", of="i/given")


def test_a_part_of_the_reward_is_a_share_with_wilsons_interval():
    parts = [[{"g/strict": float(n < 8)}] for n in range(10)]

    got = measure([STRICT], parts)["strict"]

    expected = wilson(0.8, 10)
    assert got == {"value": 0.8, "low": expected.low, "high": expected.high}


def test_samples_of_one_prompt_count_once_where_they_agree():
    once = [[{"g/strict": float(n < 8)}] for n in range(10)]
    often = [row * 16 for row in once]

    assert measure([STRICT], often)["strict"] == pytest.approx(measure([STRICT], once)["strict"])


def test_a_ratio_is_sum_over_sum():
    parts = [[{"i/followed": 1.0, "i/given": 3.0}], [{"i/followed": 1.0, "i/given": 1.0}]]

    got = measure([INST], parts)["inst"]

    assert got["value"] == 0.5
    assert got["low"] < 0.5 < got["high"]


def test_a_ratio_of_ones_has_the_interval_of_a_share():
    parts = [[{"i/followed": float(n < 30), "i/given": 1.0}] for n in range(40)]

    got = measure([INST], parts)["inst"]

    expected = wilson(0.75, 39)
    assert got["low"] == pytest.approx(expected.low, abs=0.01)
    assert got["high"] == pytest.approx(expected.high, abs=0.01)


def test_what_no_answer_has_is_left_out():
    assert measure([STRICT, INST], [[{"other": 1.0}], [{}]]) == {}
    assert measure([INST], [[{"i/followed": 0.0, "i/given": 0.0}]]) == {}


def test_a_mean_that_is_no_share_may_leave_0_and_1():
    got = measure([STRICT], [[{"g/strict": -2.0}], [{"g/strict": 6.0}]])["strict"]

    assert got["value"] == 2
    assert got["low"] < -2
    assert math.isinf(measure([STRICT], [[{"g/strict": 7.0}]])["strict"]["high"])


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1), min_size=1))
def test_every_ratio_lies_in_its_interval(drawn):
    parts = [
        [{"i/followed": float(min(a, b)), "i/given": float(b)} for a, b in row] for row in drawn
    ]
    for got in measure([INST], parts).values():
        assert 0 <= got["low"] <= got["value"] <= got["high"] <= 1


def test_the_named_value_that_counts_is_the_reward():
    source = RewardSource(name="g", module="m", function="f", counts="flexible")

    (found,) = check_values(source, [{"strict": 0, "flexible": 1, "cut": 1}], [{}])

    assert found.values == {"g": 1.0, "g/strict": 0.0, "g/flexible": 1.0, "g/cut": 1.0}
    with pytest.raises(RewardError, match="returned no value 'flexible', which is its reward"):
        check_values(source, [{"strict": 0}], [{}])


@pytest.mark.parametrize(
    ("said", "wanted", "em", "f1"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1, 1),
        ("Paris", ["London", "paris."], 1, 1),
        ("the city of Paris, France", ["Paris"], 0, 0.4),
        ("in May 1066", ["1066"], 0, 0.5),
        ("yes", ["no"], 0, 0),
        ("the", ["a"], 1, 1),
        ("the", ["Paris"], 0, 0),
        ("U.S.", ["US"], 1, 1),
        ("well-known", ["well known"], 0, 0),
        ("to be or not to be", ["to be"], 0, 2 * (2 / 6) / (2 / 6 + 1)),
    ],
)
def test_musique_takes_the_best_of_answer_and_aliases(said, wanted, em, f1):
    assert score_answer(said, wanted) == {"em": em, "f1": pytest.approx(f1)}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("Answer: Paris", "Paris"),
        ("I think.\nanswer : London\nAnswer: Paris \nand more", "Paris"),
        ("Paris", "Paris"),
        ("Answer:", ""),
        ("", ""),
    ],
)
def test_an_answer_follows_its_word(reply, said):
    assert read_answer(reply) == said


@given(st.text(max_size=60), st.text(max_size=60))
def test_f1_is_a_symmetric_share(a, b):
    assert 0 <= token_f1(a, b) <= 1
    assert token_f1(a, b) == token_f1(b, a)
    assert token_f1(a, a) == 1


def test_an_alias_is_as_good_as_the_answer():
    row = {"answer": "United Kingdom", "answer_aliases": ["UK"]}
    reply = Completion(token_ids=(1,), logprobs=(0.0,), finish="length", text="Answer: the UK")

    assert MusiqueScore().score([()], [reply], [row]) == [{"em": 1.0, "f1": 1.0, "cut": 1.0}]
