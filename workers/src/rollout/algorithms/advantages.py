"""Group-normalised advantages: how much better a sample did than its siblings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

AdvantageScale = Literal["Group", "Batch", "None"]

ZERO_VARIANCE_RANGE_MAX = 1e-6
"""A group whose rewards lie within this range (max - min, float64) carries no signal (protocol 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantages:
    """``advantages_PG`` (0 where the mask is), and which groups had no signal, ``zero_variance_P``."""

    advantages_PG: Tensor
    zero_variance_P: Tensor


def group_advantages(
    rewards_PG: Tensor, mask_PG: Tensor, scale: AdvantageScale = "Group", epsilon: float = 1e-6
) -> GroupAdvantages:
    """``A = (R - mean_group(R)) / (std + epsilon)``, in float64.

    ``mask_PG`` is 0 for samples that were excluded; statistics use the survivors. ``Group``: std of
    the group, unbiased (GRPO). ``Batch``: unbiased std of all rewards of the batch. ``None``: no
    division (Dr. GRPO). A zero-variance group, and a group of one, gets exactly 0. ``epsilon`` is
    verl's 1e-6 (TRL: 1e-4).

    Source: DeepSeekMath (arXiv 2402.03300) section 4.1; Dr. GRPO (arXiv 2503.20783).
    """
    mask = mask_PG.to(torch.float64)
    rewards = torch.where(mask > 0, rewards_PG.to(torch.float64), 0.0)
    centred = (rewards - _mean(rewards, mask)) * mask
    silent_P = zero_variance_groups(rewards_PG, mask_PG)
    scaled = centred / (_scale(rewards, mask, scale) + epsilon) if scale != "None" else centred
    advantages = torch.where(silent_P[:, None], 0.0, scaled)
    return GroupAdvantages(advantages_PG=advantages, zero_variance_P=silent_P)


def zero_variance_groups(rewards_PG: Tensor, mask_PG: Tensor) -> Tensor:
    """``[P]`` bool: max - min of the survivors <= 1e-6; True for groups of none or one."""
    rewards = rewards_PG.to(torch.float64)
    high_P = torch.where(mask_PG > 0, rewards, -torch.inf).amax(dim=1)
    low_P = torch.where(mask_PG > 0, rewards, torch.inf).amin(dim=1)
    return high_P - low_P <= ZERO_VARIANCE_RANGE_MAX


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _std(values: Tensor, mask: Tensor) -> Tensor:
    squares = ((values - _mean(values, mask)) ** 2 * mask).sum(dim=1, keepdim=True)
    return (squares / (mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)).sqrt()


def _scale(values: Tensor, mask: Tensor, scale: AdvantageScale) -> Tensor:
    if scale == "Group":
        return _std(values, mask)
    return _std(values.reshape(1, -1), mask.reshape(1, -1))
