"""GRPO and its family: one loss, composed of an objective and what stands beside it.

    loss = sum_c weight_c * ( rho_c * objective_c + beta * KL_c(policy || reference) - eta * entropy_c )

``objective`` is a ``Surrogate`` of ratio, advantage and logprob (clipped by default); its ratio is
taken per token or per completion (``ratio_level``); ``rho`` is the importance weight of the engine's
mismatch (1 when off, ``importance``) and touches the objective only; ``weight`` is the aggregation's.
Advantages come from outside (``advantages``, ``whitening``).

Source: DeepSeekMath (arXiv 2402.03300) eq. 3; DAPO (arXiv 2503.14476) for clip-higher and the token
mean; Dr. GRPO (arXiv 2503.20783) for scale None with FixedLength; the objectives name their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from rollout.algorithms.aggregation import (
    Aggregation,
    Denominators,
    aggregate,
    masked,
    token_weights,
)
from rollout.algorithms.kl import LossKlEstimator, kl_estimate, kl_loss_estimate
from rollout.algorithms.surrogate import Surrogate, SurrogateTokens
from rollout.algorithms.surrogates.clip import Clipped
from rollout.algorithms.surrogates.importance import (
    Correction,
    ImportanceWeights,
    importance_weights,
)
from rollout.algorithms.surrogates.ratio_level import RatioLevel, level_log_ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSettings:
    """The numbers of the loss."""

    surrogate: Surrogate = Clipped()  # noqa: RUF009 - frozen
    """The objective; clipped unless said otherwise."""
    ratio: RatioLevel = "Token"
    """Whether old and new policy are compared by token or by completion (verl ``loss_mode: gspo``)."""
    aggregation: Aggregation = "TokenMean"
    """How tokens weigh (``loss_agg_mode`` of verl, ``loss_type`` of TRL)."""
    kl_coefficient: float = 0.0
    """beta, >= 0, of the KL to the reference in the loss; 0: no term, no gradient."""
    kl_estimator: LossKlEstimator = "K3"
    """How that KL is estimated from sampled tokens; read where the coefficient is above 0."""
    correction: Correction | None = None
    """rho, for the mismatch of engine and learner; None: importance sampling is off."""
    entropy_coefficient: float = 0.0
    """eta of the entropy bonus, per nat; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """A micro-batch of C tokens, whole sequences one after the other; all ``[C]``.

    Only ``logprobs_C`` carries a gradient (and ``entropy_C``, for the bonus).
    """

    logprobs_C: Tensor
    """The policy's, in nats, after temperature."""
    old_logprobs_C: Tensor
    """The denominator of the ratio: the policy's of before the step's first update, or the actors'."""
    actor_logprobs_C: Tensor
    """Those that the tokens were sampled with."""
    advantages_C: Tensor
    """A of each token, baseline and scale included."""
    mask_C: Tensor
    """1 on tokens that the policy sampled, else 0."""
    sequence_C: Tensor
    """int64, each token's sequence: 0, 1, ... in order."""
    reference_logprobs_C: Tensor | None = None
    """The reference policy's; None where no KL is taken or measured."""
    entropy_C: Tensor | None = None
    """Of the policy's distribution at each token, in nats; None: neither a bonus nor a metric."""
    sampled_C: Tensor | None = None
    """The sampled tokens of each token's sample, where samples may have several sequences; None: each has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoLoss:
    """A micro-batch's part of the mini-batch; ``sums`` and ``maxima`` are detached scalars by metric."""

    loss: Tensor
    """To differentiate; parts of all micro-batches add up to the mini-batch's loss."""
    sums: dict[str, Tensor]
    """Over tokens, to be added up over micro-batches and divided later; the losses are weighted already."""
    maxima: dict[str, Tensor]
    """Of which the mini-batch has the largest."""


def grpo_loss(tokens: PolicyTokens, settings: GrpoSettings, whole: Denominators) -> GrpoLoss:
    """The share of this micro-batch in the mini-batch's loss; shares of all micro-batches add up."""
    mask = tokens.mask_C
    actor = masked(tokens.actor_logprobs_C, mask)
    seen = _seen(tokens, settings)
    importance = _importance(seen, actor, settings.correction)
    objective = settings.surrogate(_with_importance(seen, importance))
    policy_C = objective.losses_C
    if importance is not None and not objective.corrected:
        policy_C = policy_C * importance.weights_C
    weights = token_weights(
        settings.aggregation, mask, tokens.sequence_C, whole, sampled_C=tokens.sampled_C
    )
    policy_loss = aggregate(policy_C, weights)
    kl_loss, reference_sums = _reference(seen, tokens, settings, weights)
    entropy_loss, entropy_sums = _entropy(tokens, settings, weights)
    current = seen.logprobs_C.detach()
    return GrpoLoss(
        loss=policy_loss + kl_loss + entropy_loss,
        sums={
            "tokens": mask.sum(),
            "policy_loss": policy_loss.detach(),
            "clipped_low": (objective.clipped_low_C * mask).sum(),
            "clipped_high": (objective.clipped_high_C * mask).sum(),
            # KL(actor || learner): the actor did the sampling.
            "mismatch_kl": (kl_estimate(actor, current, "K3") * mask).sum(),
            **entropy_sums,
            **_importance_sums(importance, mask),
            **reference_sums,
        },
        maxima={
            "ratio_max": masked(objective.ratios_C, mask).amax(),
            "mismatch_abs_max": (actor - current).abs().amax(),
        },
    )


def _seen(tokens: PolicyTokens, settings: GrpoSettings) -> SurrogateTokens:
    mask, sequence = tokens.mask_C, tokens.sequence_C
    logprobs, old = masked(tokens.logprobs_C, mask), masked(tokens.old_logprobs_C, mask)
    return SurrogateTokens(
        logprobs_C=logprobs,
        old_logprobs_C=old,
        log_ratios_C=level_log_ratios(settings.ratio, logprobs, old, mask, sequence),
        advantages_C=masked(tokens.advantages_C, mask),
        mask_C=mask,
        sequence_C=sequence,
    )


def _importance(
    seen: SurrogateTokens, actor: Tensor, correction: Correction | None
) -> ImportanceWeights | None:
    if correction is None:
        return None
    return importance_weights(correction, seen.old_logprobs_C, actor, seen.mask_C, seen.sequence_C)


def _with_importance(
    seen: SurrogateTokens, importance: ImportanceWeights | None
) -> SurrogateTokens:
    return seen if importance is None else replace(seen, importance_C=importance.weights_C)


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
    seen: SurrogateTokens, tokens: PolicyTokens, settings: GrpoSettings, weights: Tensor
) -> tuple[Tensor | float, dict[str, Tensor]]:
    if tokens.reference_logprobs_C is None:
        return 0.0, {}
    reference = masked(tokens.reference_logprobs_C, seen.mask_C)
    reference_kl = (kl_estimate(seen.logprobs_C.detach(), reference, "K3") * seen.mask_C).sum()
    if settings.kl_coefficient == 0:
        return 0.0, {"reference_kl": reference_kl}
    kl_C = kl_loss_estimate(seen.logprobs_C, seen.old_logprobs_C, reference, settings.kl_estimator)
    kl_loss = settings.kl_coefficient * aggregate(kl_C, weights)
    return kl_loss, {"kl_loss": kl_loss.detach(), "reference_kl": reference_kl}
