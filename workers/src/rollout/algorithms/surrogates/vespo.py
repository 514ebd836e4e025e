"""VESPO: a smooth weight of the whole completion's ratio, detached, on the policy gradient.

    loss_c = -phi(w_b) * A_c * logprob_c        phi(w) = w^k * exp(lambda * (1 - w)),  phi(1) = 1

``w_b`` is the completion's ratio, the product over its tokens, and with a correction for the engine's
mismatch also of the correction's token weights: those are then not applied a second time. ``k`` and
``lambda`` are of the sign of the advantage, 0 counting as positive. Logs are clamped: a token's ratio
at +-20, ``log w`` to [log 1e-8, 20].

Source: VESPO (arXiv 2602.10693), k and lambda 2, 3 for A >= 0 and 3, 2 for A < 0; TRL 1.16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rollout.algorithms.sequences import sum_by_sequence
from rollout.algorithms.surrogate import SurrogateLoss, SurrogateTokens
from rollout.algorithms.surrogates.clip import LOG_RATIO_MAX, bounded_exp

LOG_WEIGHT_MIN = math.log(1e-8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vespo:
    """k and lambda of phi, by the advantage's sign; both >= 0.

    k lowers completions that became less likely, lambda those that became more so.
    """

    k_positive: float = 2.0
    """k where A >= 0."""
    rate_positive: float = 3.0
    """lambda where A >= 0."""
    k_negative: float = 3.0
    """k where A < 0."""
    rate_negative: float = 2.0
    """lambda where A < 0."""

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of every token; no bound binds. ``ratios_C`` are the completions'."""
        log_weights_B = self._log_weights(tokens).clamp(LOG_WEIGHT_MIN, LOG_RATIO_MAX)
        phi_C = self._phi(log_weights_B[tokens.sequence_C], tokens.advantages_C)
        never = torch.zeros_like(tokens.advantages_C, dtype=torch.bool)
        return SurrogateLoss(
            losses_C=-phi_C * tokens.advantages_C * tokens.logprobs_C,
            ratios_C=bounded_exp(log_weights_B)[tokens.sequence_C],
            clipped_low_C=never,
            clipped_high_C=never,
            corrected=True,
        )

    @staticmethod
    def _log_weights(tokens: SurrogateTokens) -> Tensor:
        logs_C = tokens.log_ratios_C.detach().clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
        if tokens.importance_C is not None:
            logs_C = logs_C + tokens.importance_C.log().clamp(LOG_WEIGHT_MIN, LOG_RATIO_MAX)
        return sum_by_sequence(logs_C * tokens.mask_C, tokens.sequence_C)

    def _phi(self, log_weights_C: Tensor, advantages_C: Tensor) -> Tensor:
        up = advantages_C >= 0
        k = torch.where(up, self.k_positive, self.k_negative).to(log_weights_C.dtype)
        rate = torch.where(up, self.rate_positive, self.rate_negative).to(log_weights_C.dtype)
        return (k * log_weights_C + rate * (1 - log_weights_C.exp())).exp()
