"""The clipped surrogate of PPO, with separate bounds below and above (clip-higher)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollout.algorithms.surrogate import SurrogateLoss, SurrogateTokens

LOG_RATIO_MAX = 20.0
"""Log ratios are clamped to +-20 before ``exp`` (verl): finite in float32, no effect in a healthy run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """``clipped_policy_loss`` as an objective."""

    low: float = 0.2
    """epsilon_low, in [0, 1): the ratio's lower bound is 1 - low."""
    high: float = 0.2
    """epsilon_high, >= 0: the upper bound is 1 + high (DAPO: 0.28)."""
    dual: float | None = None
    """c of dual clip, > 1: bounds the loss of tokens with A < 0; None: off (verl ``clip_ratio_c``, 3)."""

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of every token."""
        log_ratios = tokens.log_ratios_C
        old = torch.zeros_like(log_ratios)
        return clipped_policy_loss(
            log_ratios, old, tokens.advantages_C, self.low, self.high, self.dual
        )


def clipped_policy_loss(
    logprobs_C: Tensor,
    old_logprobs_C: Tensor,
    advantages_C: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> SurrogateLoss:
    """``max(-A r, -A clip(r, 1 - low, 1 + high))`` with ``r = exp(logprob - old_logprob)``.

    With ``dual_clip`` (> 1) the loss of a token with A < 0 is at most ``-A dual_clip``.

    ``old_logprobs_C`` and ``advantages_C`` carry no gradient.
    At r = 1 the gradient is the policy gradient ``-A grad(logprob)``. A bound is counted only where
    it binds: low for A < 0 and r < 1 - low, high for A > 0 and r > 1 + high.

    Source: PPO (arXiv 1707.06347) eq. 7; clip-higher: DAPO (arXiv 2503.14476) eq. 10 (0.2 / 0.28);
    dual clip: Ye et al. 2020 (arXiv 1912.09729) eq. 5 (3).
    """
    ratios = ratio(logprobs_C, old_logprobs_C)
    bounded = ratios.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(-advantages_C * ratios, -advantages_C * bounded)
    if dual_clip is not None:
        most = torch.minimum(losses, -advantages_C * dual_clip)
        losses = torch.where(advantages_C < 0, most, losses)
    seen = ratios.detach()
    return SurrogateLoss(
        losses_C=losses,
        ratios_C=seen,
        clipped_low_C=(advantages_C < 0) & (seen < 1 - clip_low),
        clipped_high_C=(advantages_C > 0) & (seen > 1 + clip_high),
    )


def ratio(logprobs_C: Tensor, old_logprobs_C: Tensor) -> Tensor:
    """``exp(clamp(logprob - old_logprob, -20, 20))``."""
    return bounded_exp(logprobs_C - old_logprobs_C)


def bounded_exp(log_ratios_C: Tensor) -> Tensor:
    """``exp(clamp(x, -20, 20))``."""
    return log_ratios_C.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()
