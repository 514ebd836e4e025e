import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.evaluations.paired import MeasuredPrompt, compare_items, t_quantile


def items(values, prompt="p"):
    listed = enumerate(values)
    return {n: MeasuredPrompt(prompt=f"{prompt}{n}", values={"accuracy": row}) for n, row in listed}


def test_the_difference_by_hand():
    got = compare_items(items([[1], [1], [1], [0]]), items([[0], [1], [0], [0]]), "accuracy")

    assert (got.ours, got.baseline, got.value, got.num_prompts) == (0.75, 0.25, 0.5, 4)
    half = 3.182446 * math.sqrt((4 * 0.25) / 3 / 4)
    assert (got.low, got.high) == pytest.approx((0.5 - half, 0.5 + half))
    assert not got.told_apart


def test_samples_of_a_prompt_are_one_cluster():
    once = compare_items(items([[1], [0], [1]]), items([[0], [0], [1]]), "accuracy")
    often = compare_items(
        items([[1] * 9, [0] * 9, [1] * 9]), items([[0] * 9, [0] * 9, [1] * 9]), "accuracy"
    )

    assert (once.low, once.high) == pytest.approx((often.low, often.high))


def test_prompts_that_only_one_answered_do_not_count():
    ours, theirs = items([[1], [1], [1]]), items([[0], [0]])

    assert compare_items(ours, theirs, "accuracy").num_prompts == 2
    assert compare_items(ours, {}, "accuracy") is None
    assert compare_items(ours, theirs, "strict") is None


def test_another_question_is_no_pair():
    with pytest.raises(ValueError, match="prompt 0 is 'p0' here and 'q0' in the baseline"):
        compare_items(items([[1]]), items([[1]], prompt="q"), "accuracy")


def test_one_prompt_says_nothing_for_certain():
    got = compare_items(items([[1]]), items([[0]]), "accuracy")

    assert (got.low, got.high) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.7062), (8, 2.3060), (9, 2.2622), (20, 2.0860), (100, 1.9840), (10**6, 1.96)],
)
def test_students_t_is_that_of_the_tables(degrees, t):
    assert t_quantile(degrees) == pytest.approx(t, abs=2e-4)


def test_pairs_are_narrower_than_two_intervals_where_prompts_differ_in_difficulty():
    draw = random.Random(3)
    hard = [draw.random() for _ in range(300)]
    ours = items([[float(draw.random() < p)] for p in hard])
    theirs = items(
        [[one.values["accuracy"][0] * float(draw.random() < 0.9)] for one in ours.values()]
    )

    got = compare_items(ours, theirs, "accuracy")

    alone = 2 * 1.96 * math.sqrt(2 * got.ours * (1 - got.ours) / 300)
    assert got.high - got.low < 0.6 * alone
    assert got.told_apart


def test_the_interval_covers_no_difference_as_often_as_it_says():
    draw = random.Random(5)
    covered = 0
    for _ in range(400):
        sides = [items([[float(draw.random() < 0.5)] for _ in range(60)]) for _ in range(2)]
        covered += not compare_items(*sides, "accuracy").told_apart

    assert covered > 400 * 0.95 - 3 * math.sqrt(400 * 0.05 * 0.95)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=30))
def test_the_other_way_round_is_the_other_sign(drawn):
    ours, theirs = items([[a] for a, _ in drawn]), items([[b] for _, b in drawn])

    there, back = compare_items(ours, theirs, "accuracy"), compare_items(theirs, ours, "accuracy")

    assert there.value == pytest.approx(-back.value)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
