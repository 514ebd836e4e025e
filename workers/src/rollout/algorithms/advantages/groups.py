"""Advantages from groups: how much better a sample did than its siblings, and in which unit.

    A = (R - baseline) / spread

| baseline    | what is taken off                                  | known as                        |
| ----------- | -------------------------------------------------- | ------------------------------- |
| GroupMean   | mean of the group                                  | GRPO, Dr. GRPO, REINFORCE++-baseline |
| LeaveOneOut | mean of the group's other samples                  | RLOO                            |
| None        | nothing                                            | REINFORCE++ (whitened after)    |

| scale  | what it is divided by                                          | known as                 |
| ------ | -------------------------------------------------------------- | ------------------------ |
| Group  | unbiased deviation of the group + epsilon                      | GRPO                     |
| Batch  | unbiased deviation of all rewards of the batch + epsilon       | PPO Lite (arXiv 2508.08221) |
| None   | nothing                                                        | Dr. GRPO, RLOO           |
| Whiten | as None here; all tokens are whitened after (``whitening``)    | REINFORCE++              |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rollout.algorithms.sequences import sum_by_sequence

AdvantageBaseline = Literal["GroupMean", "LeaveOneOut", "None"]
AdvantageScale = Literal["Group", "Batch", "None", "Whiten"]

ZERO_VARIANCE_RANGE_MAX = 1e-6
"""A group whose rewards lie within this range (max - min, float64) carries no signal (protocol 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantages:
    """``advantages_PG`` (0 where the mask is), and which groups had no variance, ``zero_variance_P``."""

    advantages_PG: Tensor
    zero_variance_P: Tensor


def group_advantages(
    rewards_PG: Tensor,
    mask_PG: Tensor,
    scale: AdvantageScale = "Group",
    epsilon: float = 1e-6,
    baseline: AdvantageBaseline = "GroupMean",
) -> GroupAdvantages:
    """Advantages by the tables above, in float64.

    ``mask_PG`` is 0 for samples that were excluded; statistics use the survivors. With a baseline a
    group without variance, and a group of one, gets exactly 0. ``epsilon`` is verl's 1e-6 (TRL: 1e-4).

    Source: DeepSeekMath (arXiv 2402.03300) section 4.1; Dr. GRPO (arXiv 2503.20783); RLOO (arXiv
    2402.14740) eq. 6, ``R - mean(others) = n / (n - 1) (R - mean)``; REINFORCE++ (arXiv 2501.03262).
    """
    mask = mask_PG.to(torch.float64)
    rewards = torch.where(mask > 0, rewards_PG.to(torch.float64), 0.0)
    silent_P = zero_variance_groups(rewards_PG, mask_PG)
    centred = (rewards - _baseline(rewards, mask, baseline)) * mask
    advantages = centred
    if scale in ("Group", "Batch"):
        advantages = centred / (_spread(rewards, mask, scale) + epsilon)
    if baseline != "None":
        advantages = torch.where(silent_P[:, None], 0.0, advantages)
    return GroupAdvantages(advantages_PG=advantages, zero_variance_P=silent_P)


def zero_variance_groups(rewards_PG: Tensor, mask_PG: Tensor) -> Tensor:
    """``[P]`` bool: max - min of the survivors <= 1e-6; True for groups of none or one."""
    rewards = rewards_PG.to(torch.float64)
    high_P = torch.where(mask_PG > 0, rewards, -torch.inf).amax(dim=1)
    low_P = torch.where(mask_PG > 0, rewards, torch.inf).amin(dim=1)
    return high_P - low_P <= ZERO_VARIANCE_RANGE_MAX


def rewards_to_go(rewards_C: Tensor, sequence_C: Tensor) -> Tensor:
    """``[C]``: at each token what its sequence earns from there to its end, undiscounted.

    Tokens of a sequence stand together, in order. Source: REINFORCE++ (arXiv 2501.03262) eq. 5, gamma 1.
    """
    earned_C = rewards_C.cumsum(0) - rewards_C
    totals_B = sum_by_sequence(rewards_C, sequence_C)
    first_B = totals_B.cumsum(0) - totals_B
    return totals_B[sequence_C] - (earned_C - first_B[sequence_C])


def _baseline(rewards: Tensor, mask: Tensor, baseline: AdvantageBaseline) -> Tensor:
    if baseline == "None":
        return torch.zeros_like(rewards)
    if baseline == "GroupMean":
        return _mean(rewards, mask)
    others = (mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    return ((rewards * mask).sum(dim=1, keepdim=True) - rewards) / others


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _std(values: Tensor, mask: Tensor) -> Tensor:
    squares = ((values - _mean(values, mask)) ** 2 * mask).sum(dim=1, keepdim=True)
    return (squares / (mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)).sqrt()


def _spread(values: Tensor, mask: Tensor, scale: AdvantageScale) -> Tensor:
    if scale == "Group":
        return _std(values, mask)
    return _std(values.reshape(1, -1), mask.reshape(1, -1))
