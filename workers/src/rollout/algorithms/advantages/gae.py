"""Generalised advantage estimation over the tokens that the policy sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae:
    """What comes of a batch's rewards and values, per token, ``[C]`` float64, 0 where the mask is."""

    advantages_C: Tensor
    """A_t, in units of the reward."""
    returns_C: Tensor
    """A_t + V_t: what the critic is to give."""


def generalized_advantages(
    rewards_C: Tensor,
    values_C: Tensor,
    mask_C: Tensor,
    sequence_C: Tensor,
    *,
    gamma: float = 1.0,
    gae_lambda: float = 0.95,
    bootstrap_B: Tensor | None = None,
) -> Gae:
    """``A_t = delta_t + gamma lambda A_t'`` with ``delta_t = r_t + gamma V_t' - V_t``, in float64.

    ``V_t`` is the value of the state in which token t was sampled (the tokens before it). ``t'`` is the
    *next sampled token* of the sequence: tokens under a mask of 0, such as a tool's output, are skipped
    as if they were not there, so neither gamma nor lambda discounts them, and their values and rewards
    do not count. After a sequence's last sampled token the advantage is 0 and the value
    ``bootstrap_B`` (0 when None): 0 where the episode ended there (``Terminal``), the critic's value of
    the state after all tokens where only a token limit cut it (``Bootstrap``).

    ``sequence_C`` numbers the sequences 0, 1, ... in order; ``bootstrap_B`` has one entry for each.

    Source: Schulman 2016 (arXiv 1506.02438) eq. 16; masks as in verl 0.9.1 (gamma 1, lambda 1 there).
    """
    kept_C = mask_C > 0
    sequence_K = sequence_C[kept_C]
    num_sequences = int(sequence_C.max()) + 1 if sequence_C.numel() else 0
    place_K = _places(sequence_K, num_sequences)
    rewards_BT = _spread(rewards_C[kept_C], sequence_K, place_K, num_sequences)
    values_BT = _spread(values_C[kept_C], sequence_K, place_K, num_sequences)
    there_BT = _spread(torch.ones_like(values_C[kept_C]), sequence_K, place_K, num_sequences) > 0
    last_B = rewards_BT.new_zeros(num_sequences) if bootstrap_B is None else bootstrap_B.double()
    advantages_BT = _scan(rewards_BT, values_BT, there_BT, last_B, gamma, gae_lambda)
    advantages_C = torch.zeros_like(rewards_C, dtype=torch.float64)
    advantages_C[kept_C] = advantages_BT[sequence_K, place_K]
    values = torch.where(kept_C, values_C.double(), 0.0)
    return Gae(advantages_C=advantages_C, returns_C=advantages_C + values)


def _scan(
    rewards_BT: Tensor,
    values_BT: Tensor,
    there_BT: Tensor,
    value_B: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """From the last sampled token back to the first, all sequences at once."""
    advantages_BT = torch.zeros_like(rewards_BT)
    advantage_B = torch.zeros_like(value_B)
    for t in reversed(range(rewards_BT.shape[1])):
        delta_B = rewards_BT[:, t] + gamma * value_B - values_BT[:, t]
        found_B = delta_B + gamma * gae_lambda * advantage_B
        advantage_B = torch.where(there_BT[:, t], found_B, advantage_B)
        value_B = torch.where(there_BT[:, t], values_BT[:, t], value_B)
        advantages_BT[:, t] = advantage_B
    return advantages_BT


def _places(sequence_K: Tensor, num_sequences: int) -> Tensor:
    """How many tokens of the same sequence come before each one."""
    counts_B = torch.bincount(sequence_K, minlength=num_sequences)
    first_B = counts_B.cumsum(0) - counts_B
    return torch.arange(sequence_K.numel(), device=sequence_K.device) - first_B[sequence_K]


def _spread(values_K: Tensor, sequence_K: Tensor, place_K: Tensor, num_sequences: int) -> Tensor:
    """``[B, T]`` float64 from packed values, 0 behind a sequence's end."""
    width = int(place_K.max()) + 1 if place_K.numel() else 0
    grid = torch.zeros(num_sequences, width, dtype=torch.float64, device=values_K.device)
    grid[sequence_K, place_K] = values_K.double()
    return grid
