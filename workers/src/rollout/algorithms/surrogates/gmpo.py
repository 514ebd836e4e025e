"""GMPO: the geometric mean of a completion's ratios, each clipped on the side where it would run away.

    loss_b = -A_b * exp(mean_b(l_t))        l_t = min(d_t, clip(d_t, -low, high))  for A > 0
                                            l_t = max(d_t, clip(d_t, -low, high))  for A < 0

with ``d_t = logprob_t - old_logprob_t``. A loss of completions: it stands at each of their tokens, to be
weighed by the mean over sequences. ``A_b`` is the mean of the completion's advantages.

Source: Geometric-Mean Policy Optimization (arXiv 2507.20673), clip (exp(-0.4), exp(0.4)); verl 0.9.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rollout.algorithms.sequences import mean_by_sequence
from rollout.algorithms.surrogate import SurrogateLoss, SurrogateTokens
from rollout.algorithms.surrogates.clip import LOG_RATIO_MAX, bounded_exp


@dataclass(frozen=True, slots=True, kw_only=True)
class Gmpo:
    """Bounds of a token's *log* ratio, in nats."""

    log_clip_low: float = 0.4
    """Least log ratio is -low, low > 0; binds where A < 0."""
    log_clip_high: float = 0.4
    """Largest log ratio, > 0; binds where A > 0."""

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of each completion, at all of its tokens. Counts ratios of tokens."""
        differences = tokens.log_ratios_C.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
        bounded = differences.clamp(-self.log_clip_low, self.log_clip_high)
        up = tokens.advantages_C > 0
        kept = torch.where(
            up, torch.minimum(differences, bounded), torch.maximum(differences, bounded)
        )
        ratios_B = mean_by_sequence(kept, tokens.mask_C, tokens.sequence_C).exp()
        advantages_B = mean_by_sequence(tokens.advantages_C, tokens.mask_C, tokens.sequence_C)
        seen = differences.detach()
        return SurrogateLoss(
            losses_C=(-advantages_B * ratios_B)[tokens.sequence_C],
            ratios_C=bounded_exp(seen),
            clipped_low_C=(tokens.advantages_C < 0) & (seen < -self.log_clip_low),
            clipped_high_C=up & (seen > self.log_clip_high),
        )
