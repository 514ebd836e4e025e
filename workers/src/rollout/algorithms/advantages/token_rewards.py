"""From one reward per answer to one per token, with the KL to a reference as a price for every token."""

from __future__ import annotations

import torch
from torch import Tensor

from rollout.algorithms.aggregation import masked


def token_rewards(
    rewards_B: Tensor,
    mask_C: Tensor,
    sequence_C: Tensor,
    *,
    kl_C: Tensor | None = None,
    kl_coefficient: float = 0.0,
) -> Tensor:
    """``r_t = -beta KL_t``, plus the answer's reward at its last sampled token; ``[C]`` float64.

    0 where the mask is. ``kl_C`` is an estimate per token of KL(old policy || reference) in nats. A
    sequence without a sampled token gets no reward: it has nothing that could have earned it.

    Source: Ziegler 2019 (arXiv 1909.08593) eq. 2, taken per token as in InstructGPT (arXiv 2203.02155).
    """
    rewards_C = torch.zeros_like(mask_C, dtype=torch.float64)
    if kl_C is not None:
        rewards_C = rewards_C - kl_coefficient * masked(kl_C.double(), mask_C)
    return rewards_C + masked(rewards_B.double()[sequence_C], last_sampled(mask_C, sequence_C))


def last_sampled(mask_C: Tensor, sequence_C: Tensor) -> Tensor:
    """1 at each sequence's last token with a mask of 1, else 0; in the mask's dtype."""
    places_K = (mask_C > 0).nonzero()[:, 0]
    owners_K = sequence_C[places_K]
    ends_K = torch.ones_like(owners_K, dtype=torch.bool)
    ends_K[:-1] = owners_K[:-1] != owners_K[1:]
    last_C = torch.zeros_like(mask_C)
    last_C[places_K[ends_K]] = 1
    return last_C


def sum_by_sequence(values_C: Tensor, mask_C: Tensor, sequence_C: Tensor) -> Tensor:
    """``[B]``: each sequence's sum over its sampled tokens, in float64."""
    num_sequences = int(sequence_C.max()) + 1 if sequence_C.numel() else 0
    sums_B = torch.zeros(num_sequences, dtype=torch.float64, device=values_C.device)
    return sums_B.index_add(0, sequence_C, masked(values_C.double(), mask_C))
