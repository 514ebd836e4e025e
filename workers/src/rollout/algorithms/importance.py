"""Truncated importance sampling: correct for an engine that is not quite the learner's own forward."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rollout.algorithms.clip import ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceWeights:
    """Per token, ``[C]``, no gradient: the weights, and where the cap bound."""

    weights_C: Tensor
    truncated_C: Tensor


def truncated_importance_weights(
    old_logprobs_C: Tensor, actor_logprobs_C: Tensor, cap: float = 2.0
) -> ImportanceWeights:
    """``min(exp(old_logprob - actor_logprob), cap)`` per token, detached.

    ``actor_logprobs`` must be of the distribution that was sampled from (after temperature), else the
    weights' mean is the kept mass and not 1.

    Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025);
    verl and SkyRL: token level, cap 2.0.
    """
    weights = ratio(old_logprobs_C, actor_logprobs_C).detach()
    return ImportanceWeights(weights_C=weights.clamp(max=cap), truncated_C=weights > cap)
