"""CISPO: the importance ratio is clipped and detached, so that no token ever loses its gradient.

    loss_c = -sg(clip(r_c, low, high)) * A_c * logprob_c

Two conventions of its bounds are published, and they differ by one: *absolute* bounds are of the ratio
itself (TRL: at most ``epsilon_high``, no lower bound; ScaleRL: 5), *relative* ones are distances from 1
(MiniMax-M1 and verl: ``[1 - low, 1 + high]``; the lower one set so wide that it never binds). Absolute
1.2 equals relative (1 or more, 0.2). TRL's inherited default, an absolute 0.2, scales everything by 0.2.

Source: MiniMax-M1 (arXiv 2506.13585) eq. 4 and 5; ScaleRL (arXiv 2510.13786); TRL 1.16; verl 0.9.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout.algorithms.surrogate import SurrogateLoss, SurrogateTokens
from rollout.algorithms.surrogates.clip import bounded_exp


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo:
    """Bounds of the ratio itself; ``relative`` builds them from distances."""

    ratio_min: float = 0.0
    """Lower bound of the weight, >= 0; 0: none."""
    ratio_max: float = 5.0
    """Upper bound, > 0 (ScaleRL: 5; TRL ``epsilon_high``)."""

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of every token. A bound is counted wherever it changed the weight."""
        ratios = bounded_exp(tokens.log_ratios_C.detach())
        weights = ratios.clamp(self.ratio_min, self.ratio_max)
        return SurrogateLoss(
            losses_C=-weights * tokens.advantages_C * tokens.logprobs_C,
            ratios_C=ratios,
            clipped_low_C=ratios < self.ratio_min,
            clipped_high_C=ratios > self.ratio_max,
        )


def relative(*, clip_low: float = 10.0, clip_high: float = 0.2) -> Cispo:
    """``[1 - clip_low, 1 + clip_high]``; verl's recipe is 10 (no lower bound) and 0.2."""
    return Cispo(ratio_min=max(0.0, 1 - clip_low), ratio_max=1 + clip_high)
