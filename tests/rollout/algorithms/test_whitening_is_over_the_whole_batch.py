"""Masked whitening: a table by hand, then that no cut into parts changes it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout.algorithms.advantages.whitening import measure_moments, whiten, whiten_by

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=30)


def test_the_table_by_hand() -> None:
    # 1, 3, 8 count: mean 4, squares 9 + 1 + 16 = 26, unbiased variance 13, deviation 3.605551
    values = torch.tensor([1.0, 99.0, 3.0, 8.0])
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
    expected = [-3 / 13**0.5, 0.0, -1 / 13**0.5, 4 / 13**0.5]
    assert whiten(values, mask, epsilon=0.0).tolist() == pytest.approx(expected, abs=1e-12)


def test_what_lies_under_the_mask_may_be_nan() -> None:
    values = torch.tensor([1.0, float("nan"), 3.0])
    mask = torch.tensor([1.0, 0.0, 1.0])
    kept = whiten(values[[0, 2]], mask[[0, 2]])
    assert whiten(values, mask)[[0, 2]].tolist() == kept.tolist()
    assert float(whiten(values, mask)[1]) == 0


def test_equal_values_and_lone_ones_become_zero() -> None:
    assert whiten(torch.full((3,), 0.7), torch.ones(3)).tolist() == pytest.approx([0.0] * 3)
    assert whiten(torch.tensor([5.0]), torch.ones(1)).tolist() == [0.0]
    assert whiten(torch.tensor([5.0]), torch.zeros(1)).tolist() == [0.0]


@given(VALUES, st.data())
def test_a_part_is_whitened_as_it_is_within_the_whole(values, data) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    mask = torch.tensor(
        data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(values), max_size=len(values)))
    )
    cut = data.draw(st.integers(0, len(values)))
    parts = [(x[:cut], mask[:cut]), (x[cut:], mask[cut:])]
    whole = measure_moments(x, mask)
    apart = torch.cat([whiten_by(*part, whole, 1e-3) for part in parts])
    assert torch.allclose(apart, whiten(x, mask, 1e-3), atol=1e-9)


@given(VALUES)
def test_whitened_values_have_mean_zero_and_variance_one(values) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    if float(x.std()) > 1e-3:
        found = whiten(x, torch.ones_like(x))
        assert float(found.mean()) == pytest.approx(0, abs=1e-9)
        assert float(found.var()) == pytest.approx(1, abs=1e-2)


def test_the_golden_advantages_of_reinforce_plus_plus() -> None:
    # rl-frameworks 8.3: rewards 1, 0, .5, 0 of one group less their mean, lengths 5, 3, 4, 1
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0], dtype=torch.float64)
    tokens = (rewards - rewards.mean()).repeat_interleave(torch.tensor([5, 3, 4, 1]))
    found = whiten(tokens, torch.ones_like(tokens))[[0, 5, 8, 12]]
    expected = [1.070462, -1.248872, -0.089205, -1.248872]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
