"""Importance sampling for an engine that is not quite the learner's own forward, or an older policy.

    w = exp(old_logprob - actor_logprob), per token, or per completion the product over its tokens

*Truncated*: weights above the cap become the cap (TIS). *Masked*: what lies outside the bounds counts
nothing, what lies inside keeps its weight (IcePop for tokens; for completions the sequence mask).
Weights carry no gradient and touch the policy's term only, never KL or entropy.

``actor_logprobs`` must be of the distribution that was sampled from (after temperature), else the
weights' mean is the kept mass and not 1.

Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025);
IcePop: the Ring-1T report (2025), bounds 0.5 and 5; caps: verl and SkyRL 2 for tokens, SkyRL 5 and TRL's
sequence mask 3 for completions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rollout.algorithms.sequences import sum_by_sequence
from rollout.algorithms.surrogates.clip import bounded_exp


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Which ratio is weighed with, and its bounds."""

    level: Literal["Token", "Sequence"] = "Token"
    """``Sequence``: every token has the product over its completion (verl ``rollout_is``)."""
    low: float = 0.0
    """Lower bound of the weight, >= 0; 0: none."""
    high: float = 2.0
    """Upper bound, > ``low``."""
    masks: bool = False
    """Outside the bounds the weight is 0 (IcePop), not the bound (TIS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceWeights:
    """Per token, ``[C]``, no gradient."""

    weights_C: Tensor
    """rho of each token, >= 0."""
    truncated_C: Tensor
    """Bool: a bound acted."""


def importance_weights(
    correction: Correction,
    old_logprobs_C: Tensor,
    actor_logprobs_C: Tensor,
    mask_C: Tensor,
    sequence_C: Tensor,
) -> ImportanceWeights:
    """The weights of a micro-batch; logprobs finite and 0 under the mask."""
    logs_C = (old_logprobs_C - actor_logprobs_C).detach()
    if correction.level == "Sequence":
        logs_C = sum_by_sequence(logs_C * mask_C, sequence_C)[sequence_C]
    weights_C = bounded_exp(logs_C)
    outside_C = (weights_C < correction.low) | (weights_C > correction.high)
    if correction.masks:
        kept_C = torch.where(outside_C, 0.0, weights_C)
        return ImportanceWeights(weights_C=kept_C, truncated_C=outside_C)
    bounded_C = weights_C.clamp(correction.low, correction.high)
    return ImportanceWeights(weights_C=bounded_C, truncated_C=outside_C)
