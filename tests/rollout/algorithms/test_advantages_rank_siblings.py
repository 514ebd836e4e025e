"""Group-normalised advantages: tables by hand, then properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout.algorithms.advantages.groups import group_advantages

ROW = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), min_size=4, max_size=4)
MASK_ROW = st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4)


BASELINE = st.sampled_from(["GroupMean", "LeaveOneOut"])


def advantages(rewards, mask=None, scale="Group", epsilon=0.0, baseline="GroupMean"):
    rewards = torch.tensor(rewards, dtype=torch.float64)
    mask = torch.ones_like(rewards) if mask is None else torch.tensor(mask)
    return group_advantages(rewards, mask, scale, epsilon, baseline)


def test_a_group_is_divided_by_its_own_unbiased_deviation() -> None:
    # [0, 0, 1, 1]: mean 1/2, squares 4 * 1/4 = 1, unbiased variance 1/3, std 0.577350; 0.5/std = 0.866025
    result = advantages([[0.0, 0.0, 1.0, 1.0]])
    assert result.advantages_PG[0].tolist() == pytest.approx([-0.8660254] * 2 + [0.8660254] * 2)


def test_batch_scale_divides_by_the_deviation_of_all_rewards() -> None:
    # rewards 0 2 | 4 6: batch mean 3, squares 9+1+1+9 = 20, variance 20/3, std 2.581989; centred -1, 1
    result = advantages([[0.0, 2.0], [4.0, 6.0]], scale="Batch")
    assert result.advantages_PG.flatten().tolist() == pytest.approx([-0.3872983, 0.3872983] * 2)


def test_statistics_of_a_group_with_exclusions_use_the_survivors() -> None:
    whole = advantages([[0.0, 1.0, 1.0]])
    with_hole = advantages([[0.0, 99.0, 1.0, 1.0]], mask=[[1.0, 0.0, 1.0, 1.0]])
    assert with_hole.advantages_PG[0, [0, 2, 3]].tolist() == whole.advantages_PG[0].tolist()
    assert with_hole.advantages_PG[0, 1] == 0


def test_a_group_without_spread_is_silent_and_named() -> None:
    result = advantages([[0.1, 0.1 + 9e-7], [0.1, 0.1 + 2e-6]], epsilon=1e-6)
    assert result.zero_variance_P.tolist() == [True, False]
    assert result.advantages_PG[0].tolist() == [0.0, 0.0]
    assert result.advantages_PG[1, 1] > 0


def test_a_lone_survivor_is_silent() -> None:
    result = advantages([[5.0, 1.0]], mask=[[1.0, 0.0]])
    assert result.advantages_PG.tolist() == [[0.0, 0.0]]
    assert result.zero_variance_P.tolist() == [True]


def test_rewards_of_excluded_samples_may_be_nan() -> None:
    result = advantages([[float("nan"), 0.0, 1.0]], mask=[[0.0, 1.0, 1.0]])
    assert result.advantages_PG.isfinite().all()


@given(
    st.lists(ROW, min_size=1, max_size=4),
    st.data(),
    st.sampled_from(["Group", "Batch", "None", "Whiten"]),
    BASELINE,
)
def test_centred_advantages_sum_to_zero_in_every_group(rewards, data, scale, baseline) -> None:
    mask = [data.draw(MASK_ROW) for _ in rewards]
    result = advantages(rewards, mask, scale, epsilon=1e-6, baseline=baseline)
    assert torch.allclose(result.advantages_PG.sum(dim=1), torch.zeros(len(rewards)).double())


@given(ROW, st.permutations(range(4)), BASELINE)
def test_permuting_a_group_permutes_its_advantages(rewards, order, baseline) -> None:
    straight = advantages([rewards], epsilon=1e-6, baseline=baseline).advantages_PG[0]
    moved = [rewards[i] for i in order]
    shuffled = advantages([moved], epsilon=1e-6, baseline=baseline).advantages_PG[0]
    assert torch.allclose(straight[list(order)], shuffled, atol=1e-12)


@given(ROW)
def test_leaving_one_out_is_the_centred_reward_stretched(rewards) -> None:
    # n / (n - 1) (R - mean), here 4 / 3
    plain = advantages([rewards], scale="None").advantages_PG
    left_out = advantages([rewards], scale="None", baseline="LeaveOneOut").advantages_PG
    assert torch.allclose(left_out, plain * 4 / 3, atol=1e-12)


@given(ROW, st.floats(-100, 100), st.floats(0.1, 10))
def test_group_advantages_ignore_shift_and_scale_of_rewards(rewards, shift, factor) -> None:
    plain = advantages([rewards]).advantages_PG
    moved = advantages([[shift + factor * r for r in rewards]]).advantages_PG
    if not advantages([rewards]).zero_variance_P[0]:
        assert torch.allclose(plain, moved, atol=1e-9)
