"""SAPO: a smooth gate around ratio 1 instead of a hard clip.

    loss_c = -A_c * (4 / tau) * sigmoid(tau * (r_c - 1))      tau = positive for A > 0, else negative

At r = 1 the gradient is the policy gradient; away from it the weight falls off, faster for larger tau.
The value at r = 1 is ``-A * 2 / tau``, so losses of different temperatures do not compare.

Source: Soft Adaptive Policy Optimization (arXiv 2511.20347), temperatures 1.0 and 1.05; TRL 1.16; verl.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rollout.algorithms.surrogate import SurrogateLoss, SurrogateTokens
from rollout.algorithms.surrogates.clip import bounded_exp


@dataclass(frozen=True, slots=True, kw_only=True)
class Sapo:
    """How fast the gate closes, by the advantage's sign."""

    temperature_positive: float = 1.0
    """tau_pos, > 0, for tokens with A > 0."""
    temperature_negative: float = 1.05
    """tau_neg, > 0, for all others; above the other's it damps unlearning more."""

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of every token; no bound binds."""
        ratios, advantages = bounded_exp(tokens.log_ratios_C), tokens.advantages_C
        temperatures = torch.where(
            advantages > 0, self.temperature_positive, self.temperature_negative
        ).to(ratios.dtype)
        gates = torch.sigmoid(temperatures * (ratios - 1)) * 4 / temperatures
        never = torch.zeros_like(advantages, dtype=torch.bool)
        return SurrogateLoss(
            losses_C=-advantages * gates,
            ratios_C=ratios.detach(),
            clipped_low_C=never,
            clipped_high_C=never,
        )
