"""Simple preference optimization: mean logprobs compared above a margin, no reference.

    loss = -log sigmoid( beta * (p(c) - p(r)) - gamma )            p(y) = log pi(y) / |y|

Averaged over the pairs of the global batch.
Source: Meng 2024 (arXiv 2405.14734) eq. 6. Defaults: beta 2.0 and gamma 1.0 (the paper's table of
searched values starts at beta 2.0; it advises gamma / beta 0.5 to begin with). TRL's gamma is 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn.functional import logsigmoid

from rollout.algorithms.preference.pairs import PairLogprobs, PairLosses


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpoSettings:
    """The numbers of the loss."""

    beta: float = 2.0
    """Scale of the mean logprobs, > 0."""
    gamma: float = 1.0
    """Margin between the two rewards that the loss aims at, in the rewards' own scale, >= 0."""


def simpo_losses(pairs: PairLogprobs, settings: SimpoSettings) -> PairLosses:
    """The loss of each pair; rewards are ``beta`` times the mean logprob."""
    chosen = settings.beta * pairs.chosen_P / pairs.chosen_tokens_P
    rejected = settings.beta * pairs.rejected_P / pairs.rejected_tokens_P
    return PairLosses(
        losses_P=-logsigmoid(chosen - rejected - settings.gamma),
        chosen_rewards_P=chosen.detach(),
        rejected_rewards_P=rejected.detach(),
    )
