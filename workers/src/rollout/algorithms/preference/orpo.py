"""Odds ratio preference optimization: fine-tuning on the chosen answer plus an odds ratio, no reference.

    loss = -p(c) - beta * log sigmoid( log odds(c) - log odds(r) )
    p(y) = log pi(y) / |y|            log odds(y) = p(y) - log(1 - exp p(y))

``p`` is the answer's mean logprob per token. Averaged over the pairs of the global batch, so the first
term is a mean of per-answer means. TRL takes that term as a mean over all tokens of a micro-batch, the
prompt's included; the paper's likelihood is the answer's.
Source: Hong 2024 (arXiv 2403.07691) eq. 5 to 7. Default: beta 0.1 (the paper's lambda).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rollout.algorithms.preference.pairs import PairLogprobs, PairLosses

MEAN_LOGPROB_MAX = -1e-6
"""Where p(y) is held below 0: an answer of probability 1 would have infinite odds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrpoSettings:
    """``beta`` weighs the odds ratio against the likelihood."""

    beta: float = 0.1


def orpo_losses(pairs: PairLogprobs, settings: OrpoSettings) -> PairLosses:
    """The loss of each pair; rewards are ``beta`` times the mean logprob."""
    chosen = pairs.chosen_P / pairs.chosen_tokens_P
    rejected = pairs.rejected_P / pairs.rejected_tokens_P
    ratio = logsigmoid(log_odds(chosen) - log_odds(rejected))
    return PairLosses(
        losses_P=-chosen - settings.beta * ratio,
        chosen_rewards_P=settings.beta * chosen.detach(),
        rejected_rewards_P=settings.beta * rejected.detach(),
    )


def log_odds(mean_logprobs_P: Tensor) -> Tensor:
    """``log(p / (1 - p))`` of ``p = exp(mean logprob)``, finite as ``p`` reaches 1."""
    held = mean_logprobs_P.clamp(max=MEAN_LOGPROB_MAX)
    return held - torch.log(-torch.expm1(held))
