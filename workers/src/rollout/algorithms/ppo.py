"""PPO with a learned critic: advantages by GAE, a clipped policy loss, a clipped value loss.

    policy   sum_c weight_c * ( rho_c * max(-A_c r_c, -A_c clip(r_c, 1 - low, 1 + high))
                                 + beta * KL_c(policy || reference) - eta * entropy_c )
    critic   sum_c weight_c * coefficient * max((v_c - R_c)^2, (clip(v_c, v_old_c +- clip) - R_c)^2)

The policy's loss is GRPO's (``grpo_loss``): there, too, advantages are given token by token. With the
KL in the reward, ``beta`` is 0 in the loss and ``-beta KL_t`` is a part of each token's reward instead.
Advantages and returns come from the values, old and reference logprobs of *before the first update* of
a step and stay as they are over its epochs; whitening takes a mini-batch as a whole, all ranks.

Source: PPO (arXiv 1707.06347) eqs. 7 and 9; KL in the reward: Ziegler 2019 (arXiv 1909.08593).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rollout.algorithms.advantages.gae import Gae, generalized_advantages
from rollout.algorithms.advantages.token_rewards import sum_by_sequence, token_rewards
from rollout.algorithms.aggregation import (
    Aggregation,
    Denominators,
    aggregate,
    masked,
    token_weights,
)
from rollout.algorithms.kl import KlEstimator, kl_estimate
from rollout.algorithms.value_loss import clipped_value_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnSettings:
    """How rewards become advantages."""

    gamma: float = 1.0
    """Discount of the next sampled token, in (0, 1]."""
    gae_lambda: float = 0.95
    """lambda of GAE, in [0, 1]; 1: returns less values, 0: one-step errors."""
    reward_kl: KlEstimator | None = "K1"
    """Estimates the KL in each token's reward; None: none there (the loss may have it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSettings:
    """The numbers of the critic's loss."""

    clip: float = 0.2
    """How far a value may move from ``v_old``, in units of the reward; 0 is off (``cliprange_value`` of verl and
    TRL)."""
    coefficient: float = 0.5
    """Weight of the squared error, >= 0 (``vf_coef`` of TRL)."""
    aggregation: Aggregation = "TokenMean"
    """How tokens weigh; the policy's own mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """Whole sequences as they were before the first update; nothing carries a gradient.

    Axes: B sequences, C tokens of all of them one after the other.
    """

    rewards_B: Tensor
    """The reward of each sequence, before any KL."""
    values_C: Tensor
    """V_t of the state in which a token was sampled."""
    old_logprobs_C: Tensor
    """The policy's, in nats."""
    mask_C: Tensor
    """1 on tokens that the policy sampled, else 0."""
    sequence_C: Tensor
    """int64, each token's sequence: 0, 1, ... in order."""
    reference_logprobs_C: Tensor | None = None
    """The reference policy's; None without a KL."""
    bootstrap_B: Tensor | None = None
    """Value of the state after a sequence's last token; None: 0 for all (``generalized_advantages``)."""


def ppo_returns(tokens: SampledTokens, settings: ReturnSettings, kl_coefficient: float) -> Gae:
    """Advantages, before whitening, and returns, ``[C]`` float64."""
    kl_C = None
    if settings.reward_kl is not None and tokens.reference_logprobs_C is not None:
        kl_C = kl_estimate(
            masked(tokens.old_logprobs_C.double(), tokens.mask_C),
            masked(tokens.reference_logprobs_C.double(), tokens.mask_C),
            settings.reward_kl,
        )
    rewards_C = token_rewards(
        tokens.rewards_B,
        tokens.mask_C,
        tokens.sequence_C,
        kl_C=kl_C,
        kl_coefficient=kl_coefficient,
    )
    return generalized_advantages(
        rewards_C,
        tokens.values_C,
        tokens.mask_C,
        tokens.sequence_C,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        bootstrap_B=tokens.bootstrap_B,
    )


def answer_kl(tokens: SampledTokens) -> Tensor:
    """``[B]`` float64: each answer's sum of ``log(old policy / reference)``, which a controller steers."""
    if tokens.reference_logprobs_C is None:
        return tokens.rewards_B.double() * 0
    difference_C = tokens.old_logprobs_C.double() - tokens.reference_logprobs_C.double()
    return sum_by_sequence(difference_C, tokens.mask_C, tokens.sequence_C)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTokens:
    """A micro-batch of the critic, ``[C]`` each: only ``values_C`` carries a gradient."""

    values_C: Tensor
    """v_c, what the critic gives now."""
    old_values_C: Tensor
    """v_old_c, of before the step's first update."""
    returns_C: Tensor
    """R_c, of then too."""
    mask_C: Tensor
    """1 on tokens that the policy sampled, else 0."""
    sequence_C: Tensor
    """int64, each token's sequence: 0, 1, ... in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoValueLoss:
    """The critic's ``GrpoLoss``, without maxima."""

    loss: Tensor
    """To differentiate; parts of all micro-batches add up."""
    sums: dict[str, Tensor]
    """Detached, by metric: ``value_loss``, weighted already, and ``value_clipped``, a count of tokens."""


def ppo_value_loss(
    tokens: ValueTokens, settings: ValueSettings, whole: Denominators
) -> PpoValueLoss:
    """The share of this micro-batch in the mini-batch's value loss; shares of all of them add up."""
    mask = tokens.mask_C
    found = clipped_value_loss(
        masked(tokens.values_C, mask),
        masked(tokens.old_values_C, mask),
        masked(tokens.returns_C, mask),
        clip=settings.clip,
        coefficient=settings.coefficient,
    )
    weights = token_weights(settings.aggregation, mask, tokens.sequence_C, whole)
    loss = aggregate(found.losses_C, weights)
    clipped = (found.clipped_C * mask).sum()
    return PpoValueLoss(loss=loss, sums={"value_loss": loss.detach(), "value_clipped": clipped})
