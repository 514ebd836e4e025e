"""Kahneman-Tversky optimization: single answers, each good or bad, valued against a reference point.

    good:  w_good * (1 - sigmoid(beta * (d - z)))        bad:  w_bad * (1 - sigmoid(beta * (z - d)))

    d = log pi(y|x) - log ref(y|x)        z = max(0, mean over the batch of log pi(y'|x) - log ref(y'|x))

``y'`` is an answer given to another prompt, so z estimates how far the policy is from the reference as a
whole; it has no gradient. Averaged over the rows of the global batch.
Source: Ethayarajh 2024 (arXiv 2402.01306) eq. 7 and 8. Defaults: beta 0.1, weights 1 (the paper, TRL).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KtoSettings:
    """The numbers of the loss. The paper wants desirable weight x count within 1 to 4/3 of the other."""

    beta: float = 0.1
    """Scale of the log ratios, > 0, per nat."""
    desirable_weight: float = 1.0
    """w_good, > 0."""
    undesirable_weight: float = 1.0
    """w_bad, > 0."""


def kto_losses(
    ratios_B: Tensor, desirable_B: Tensor, reference_point: Tensor, settings: KtoSettings
) -> Tensor:
    """The loss of each row ``[B]``: ``ratios`` are d in nats, ``desirable`` is bool, z is a scalar."""
    signs = torch.where(desirable_B, 1.0, -1.0).to(ratios_B.dtype)
    weights = torch.where(desirable_B, settings.desirable_weight, settings.undesirable_weight)
    values = torch.sigmoid(settings.beta * signs * (ratios_B - reference_point))
    return weights.to(ratios_B.dtype) * (1 - values)


def reference_point(mismatched_ratios: Tensor) -> Tensor:
    """Z from the log ratios of the mismatched answers, a scalar; 0 where there are none."""
    if mismatched_ratios.numel() == 0:
        return mismatched_ratios.new_zeros(())
    return mismatched_ratios.mean().clamp(min=0).detach()


def mismatched_answers(prompts: Sequence[Hashable]) -> list[int | None]:
    """For each row the row whose answer is put to its prompt: the nearest before it with another prompt.

    The order is a ring: with all prompts distinct it is TRL's rotation by one to the right. None where
    every row has the same prompt.
    """
    count = len(prompts)
    return [
        next(
            (other for back in range(1, count) if prompts[other := (row - back) % count] != prompt),
            None,
        )
        for row, prompt in enumerate(prompts)
    ]
