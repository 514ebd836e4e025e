"""Identity preference optimization: regress the margin of a pair to a fixed target, so that it cannot grow.

    loss = (x - 1 / (2 beta))^2

    SequenceSum   x = d(c) - d(r)                  Azar 2023 eq. 17; OpenRLHF
    TokenMean     x = d(c) / |c| - d(r) / |r|      TRL, AReaL

with d the policy's summed logprob minus the reference's, and |.| an answer's number of tokens. The
target is in nats, per token under ``TokenMean``: beta 0.1 asks for 5 nats a token, far more than a
policy near its reference has. Averaged over the pairs of the global batch.
Defaults: beta 0.1 (TRL), TokenMean (TRL).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout.algorithms.preference.pairs import PairLogprobs, PairLosses, reference_margins

IpoAggregation = Literal["TokenMean", "SequenceSum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IpoSettings:
    """The numbers of the loss."""

    beta: float = 0.1
    """Regularisation (tau of the paper), > 0: the margin is pulled to 1 / (2 beta) nats."""
    aggregation: IpoAggregation = "TokenMean"
    """Whether an answer's log ratio is its sum or its mean over tokens."""


def target_margin(beta: float) -> float:
    """The margin that the loss pulls to, in nats (a token, under ``TokenMean``)."""
    return 1 / (2 * beta)


def ipo_losses(pairs: PairLogprobs, settings: IpoSettings) -> PairLosses:
    """The loss of each pair; rewards are ``beta`` times what is compared."""
    chosen, rejected = reference_margins(pairs)
    if settings.aggregation == "TokenMean":
        chosen = chosen / pairs.chosen_tokens_P
        rejected = rejected / pairs.rejected_tokens_P
    return PairLosses(
        losses_P=(chosen - rejected - target_margin(settings.beta)).square(),
        chosen_rewards_P=settings.beta * chosen.detach(),
        rejected_rewards_P=settings.beta * rejected.detach(),
    )
