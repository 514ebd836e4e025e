"""A curve of a million steps is a few hundred stretches, and what one step did is still seen. Pure."""

from __future__ import annotations

import math
import statistics

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rollout.service.reading.curves import STRETCHES_MAX, LongCurve


def curve_of(values) -> LongCurve:
    curve = LongCurve()
    for step, value in enumerate(values, 1):
        curve.add(step, value)
    return curve


@given(st.lists(st.floats(-1e6, 1e6), max_size=STRETCHES_MAX))
def test_a_short_curve_keeps_each_value(values):
    found = list(curve_of(values).stretches())

    assert [(one.first, one.last, one.mean, one.low, one.high) for one in found] == [
        (step, step, value, value, value) for step, value in enumerate(values, 1)
    ]


@pytest.mark.parametrize("at", [1, 4_321, 20_000])
def test_a_spike_of_one_step_is_an_end_of_its_stretch(at):
    curve = curve_of(9.0 if step == at else 1.0 for step in range(1, 20_001))
    found = list(curve.stretches())

    [spike] = [one for one in found if one.high == 9.0]
    assert spike.first <= at <= spike.last
    assert len(found) <= STRETCHES_MAX
    assert curve.width == 64


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=2500))
def test_stretches_meet_and_have_the_mean_and_the_ends_of_their_steps(values):
    for one in curve_of(values).stretches():
        part = values[one.first - 1 : one.last]
        assert math.isclose(one.mean, statistics.fmean(part), abs_tol=1e-9)
        assert (one.low, one.high) == (min(part), max(part))


def test_what_is_no_number_is_left_out():
    found = list(curve_of([1.0, math.nan, math.inf, 2.0]).stretches())

    assert [(one.first, one.mean) for one in found] == [(1, 1.0), (4, 2.0)]
