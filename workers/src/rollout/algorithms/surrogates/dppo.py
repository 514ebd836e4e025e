"""DPPO: tokens whose probability moved too far in the advantage's direction are left out.

    loss_c = -keep_c * A_c * r_c + coefficient * d_c^2

``d = logprob - old_logprob``, ``r = exp(d)``; ``keep`` is 0 where ``p - p_old > high`` and A > 0, or
``p - p_old < -low`` and A <= 0. Probabilities, not ratios, are compared: a rare token may change its
ratio a lot without moving the policy. The square counts for tokens that were left out too.

Source: Divergence PPO (arXiv 2602.04879), binary total variation; the square: Kimi K2.5 (arXiv
2602.02276); prime-rl, whose default loss both are (0.2, 0.2, 1e-3; sum over the global token count).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rollout.algorithms.surrogate import SurrogateLoss, SurrogateTokens
from rollout.algorithms.surrogates.clip import LOG_RATIO_MAX, bounded_exp


@dataclass(frozen=True, slots=True, kw_only=True)
class Dppo:
    """Where a token is left out, and what its drift costs."""

    mask_low: float = 0.2
    """Most that a probability may fall where A <= 0, in [0, 1]."""
    mask_high: float = 0.2
    """Most that it may rise where A > 0, in [0, 1]."""
    drift_coefficient: float = 1e-3
    """Weight of the squared log ratio, >= 0, per square nat; 0: no such term."""

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of every token. A bound is counted where it left a token out."""
        differences = tokens.log_ratios_C.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
        ratios = bounded_exp(differences)
        moved = tokens.logprobs_C.detach().exp() - tokens.old_logprobs_C.exp()
        up = tokens.advantages_C > 0
        high, low = up & (moved > self.mask_high), ~up & (moved < -self.mask_low)
        policy = torch.where(high | low, 0.0, -tokens.advantages_C * ratios)
        return SurrogateLoss(
            losses_C=policy + self.drift_coefficient * differences.square(),
            ratios_C=ratios.detach(),
            clipped_low_C=low & (tokens.advantages_C < 0),
            clipped_high_C=high,
        )
