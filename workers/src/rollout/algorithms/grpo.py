"""GRPO: a clipped surrogate on group-normalised advantages, with optional KL and importance correction.

    loss = sum_c weight_c * ( rho_c * max(-A_c r_c, -A_c clip(r_c, 1 - low, 1 + high))
                                + beta * KL_c(policy || reference) - eta * entropy_c )

``r = exp(logprob - old_logprob)``; ``rho`` is the truncated importance weight of the engine's
mismatch (1 when off) and touches the first term only; ``weight`` is the aggregation's.

Source: DeepSeekMath (arXiv 2402.03300) eq. 3; DAPO (arXiv 2503.14476) for clip-higher and the token
mean; Dr. GRPO (arXiv 2503.20783) for scale None with FixedLength.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rollout.algorithms.aggregation import (
    Aggregation,
    Denominators,
    aggregate,
    masked,
    token_weights,
)
from rollout.algorithms.clip import clipped_policy_loss
from rollout.algorithms.importance import ImportanceWeights, truncated_importance_weights
from rollout.algorithms.kl import KlEstimator, kl_estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSettings:
    """The numbers of the loss. ``importance_cap`` None turns the correction off."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: Aggregation = "TokenMean"
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "K3"
    importance_cap: float | None = None
    entropy_coefficient: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """A micro-batch: only ``logprobs_C`` carries a gradient (and ``entropy_C``, for the bonus).

    ``mask_C`` is 1 on tokens that the policy sampled. ``reference_logprobs_C`` is None when the KL
    coefficient is 0. ``entropy_C`` is in nats.
    """

    logprobs_C: Tensor
    old_logprobs_C: Tensor
    actor_logprobs_C: Tensor
    advantages_C: Tensor
    mask_C: Tensor
    sequence_C: Tensor
    reference_logprobs_C: Tensor | None = None
    entropy_C: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoLoss:
    """``loss`` to differentiate; detached ``sums`` over the tokens, to add up and divide later; ``maxima``."""

    loss: Tensor
    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


def grpo_loss(tokens: PolicyTokens, settings: GrpoSettings, whole: Denominators) -> GrpoLoss:
    """The share of this micro-batch in the mini-batch's loss; shares of all micro-batches add up."""
    mask = tokens.mask_C
    logprobs = masked(tokens.logprobs_C, mask)
    old = masked(tokens.old_logprobs_C, mask)
    actor = masked(tokens.actor_logprobs_C, mask)
    clipped = clipped_policy_loss(
        logprobs,
        old,
        masked(tokens.advantages_C, mask),
        settings.clip_low,
        settings.clip_high,
        settings.dual_clip,
    )
    importance = _importance(old, actor, settings.importance_cap)
    policy_C = clipped.losses_C
    if importance is not None:
        policy_C = policy_C * importance.weights_C
    weights = token_weights(settings.aggregation, mask, tokens.sequence_C, whole)
    policy_loss = aggregate(policy_C, weights)
    kl_loss, reference_sums = _reference(logprobs, tokens, settings, weights)
    entropy_loss, entropy_sums = _entropy(tokens, settings, weights)
    seen = logprobs.detach()
    return GrpoLoss(
        loss=policy_loss + kl_loss + entropy_loss,
        sums={
            "tokens": mask.sum(),
            "policy_loss": policy_loss.detach(),
            "clipped_low": (clipped.clipped_low_C * mask).sum(),
            "clipped_high": (clipped.clipped_high_C * mask).sum(),
            # KL(actor || learner): the actor did the sampling.
            "mismatch_kl": (kl_estimate(actor, seen, "K3") * mask).sum(),
            **entropy_sums,
            **_importance_sums(importance, mask),
            **reference_sums,
        },
        maxima={
            "ratio_max": masked(clipped.ratios_C, mask).amax(),
            "mismatch_abs_max": (actor - seen).abs().amax(),
        },
    )


def _importance(old: Tensor, actor: Tensor, cap: float | None) -> ImportanceWeights | None:
    return None if cap is None else truncated_importance_weights(old, actor, cap)


def _importance_sums(importance: ImportanceWeights | None, mask: Tensor) -> dict[str, Tensor]:
    if importance is None:
        return {}
    weights = importance.weights_C * mask
    return {
        "importance": weights.sum(),
        "importance_square": weights.square().sum(),
        "importance_truncated": (importance.truncated_C * mask).sum(),
    }


def _entropy(
    tokens: PolicyTokens, settings: GrpoSettings, weights: Tensor
) -> tuple[Tensor | float, dict[str, Tensor]]:
    if tokens.entropy_C is None:
        return 0.0, {}
    entropy = masked(tokens.entropy_C, tokens.mask_C)
    sums = {"entropy": entropy.detach().sum()}
    if settings.entropy_coefficient == 0:
        return 0.0, sums
    bonus = settings.entropy_coefficient * aggregate(entropy, weights)
    return -bonus, {**sums, "entropy_loss": -bonus.detach()}


def _reference(
    logprobs: Tensor, tokens: PolicyTokens, settings: GrpoSettings, weights: Tensor
) -> tuple[Tensor | float, dict[str, Tensor]]:
    if tokens.reference_logprobs_C is None:
        return 0.0, {}
    mask = tokens.mask_C
    reference = masked(tokens.reference_logprobs_C, mask)
    kl_C = kl_estimate(logprobs, reference, settings.kl_estimator)
    kl_loss = settings.kl_coefficient * aggregate(kl_C, weights)
    reference_kl = (kl_estimate(logprobs.detach(), reference, "K3") * mask).sum()
    return kl_loss, {"kl_loss": kl_loss.detach(), "reference_kl": reference_kl}
