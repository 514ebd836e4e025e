"""Weights, bounds and gates: what several values come to, and whom a settled sample is not asked of."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_runners import Told, samples, source

from rollout.errors import RewardError
from rollout.rewards.calls import SourceCalls
from rollout.rewards.composite import total
from rollout.rewards.pipeline import RewardPipeline
from rollout.rewards.source import PassMark

NUMBERS = st.floats(-1e6, 1e6)
FORMAT = source("format", gate=PassMark(at_least=1.0, else_total=-1.0))
ALONE = source("right", gate=PassMark(at_least=0.5))


@pytest.mark.parametrize(
    ("sources", "values", "worth"),
    [
        ([source("a", weight=2.0), source("b")], {"a": 3.0, "b": 1.0}, 7.0),
        ([source("a", weight=2.0, at_most=4.0), source("b")], {"a": 3.0, "b": 1.0}, 5.0),
        ([source("a", weight=-1.0, at_least=-0.5)], {"a": 9.0}, -0.5),
        ([FORMAT, source("b")], {"format": 1.0, "b": 2.0}, 3.0),
        ([FORMAT, source("b")], {"format": 0.9}, -1.0),
        ([source("b"), FORMAT], {"b": 2.0, "format": 0.0}, -1.0),
        ([source("b"), ALONE], {"b": 2.0, "right": 0.25}, 0.25),
        ([source("b"), ALONE], {"b": 2.0, "right": 0.5}, 2.5),
        ([FORMAT, ALONE], {"format": 0.0, "right": 0.0}, -1.0),
        ([ALONE, FORMAT], {"format": 0.0, "right": 0.25}, 0.25),
        ([source("a", weight=0.0, gate=PassMark(at_least=1.0, else_total=0.0))], {"a": 0.0}, 0.0),
    ],
)
def test_the_first_gate_that_is_not_passed_settles_the_reward(sources, values, worth):
    assert total(sources, values) == worth


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_no_part_adds_more_than_its_bounds(given_parts):
    sources = [
        source(f"s{n}", weight=weight, at_least=min(low, high), at_most=max(low, high))
        for n, (weight, low, high, _) in enumerate(given_parts)
    ]
    values = {f"s{n}": value for n, (_, _, _, value) in enumerate(given_parts)}

    found = total(sources, values)

    low, high = sum(one.at_least for one in sources), sum(one.at_most for one in sources)
    assert low - 1e-6 * abs(low) - 1e-9 <= found <= high + 1e-6 * abs(high) + 1e-9


@given(st.lists(NUMBERS, min_size=2, max_size=6), st.data())
def test_what_stands_behind_a_gate_that_closed_changes_nothing(values, data):
    place = data.draw(st.integers(0, len(values) - 1))
    gate = PassMark(
        at_least=values[place] + 1.0, else_total=data.draw(st.one_of(st.none(), NUMBERS))
    )
    names = [f"s{n}" for n in range(len(values))]
    sources = [source(n, gate=gate if n == names[place] else None) for n in names]
    others = {name: data.draw(NUMBERS) for name in names} | {names[place]: values[place]}

    told = dict(zip(names, values, strict=True))
    assert total(sources, told) == total(sources, others)


def test_a_product_beyond_every_number_is_named_and_a_bound_mends_it():
    with pytest.raises(RewardError, match="beyond what a number can hold; bound it with atMost"):
        total([source("huge", weight=1e6)], {"huge": 1e305})
    assert total([source("huge", weight=1e6, at_most=1.0)], {"huge": 1e305}) == 1.0


def test_a_settled_sample_is_asked_of_nobody_behind_the_gate():
    gate, judge, compare = Told([1.0, 0.0, 1.0]), Told([0.5, 0.25]), Told([0.1, 0.2, 0.3])
    pipeline = RewardPipeline([FORMAT, source("judge"), source("rank", per_group=True)])
    pipeline._calls = [
        SourceCalls(one, opens=lambda _, runner=runner: runner)
        for one, runner in zip(pipeline.sources, (gate, judge, compare), strict=True)
    ]

    found = pipeline.judge(samples("x", "y", "z", groups="ggg"))

    assert judge.asked == [["x", "z"]]
    assert compare.asked == [["x", "y", "z"]], "a group is compared whole"
    assert [one.total for one in found] == pytest.approx([1.6, -1.0, 1.55])
    assert found[1].parts == {"format": 0.0, "rank": 0.2}
    assert all(math.isfinite(one.total) for one in found)
