"""Estimators of KL(policy || other) from tokens that the policy sampled."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rollout.algorithms.surrogates.clip import LOG_RATIO_MAX, bounded_exp

KlEstimator = Literal["K1", "K2", "K3"]
LossKlEstimator = Literal["K1", "K2", "K3", "K3Plus", "K3Corrected"]


def kl_estimate(logprobs_C: Tensor, other_logprobs_C: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimate in nats, with ``d = logprob - other_logprob``.

    ``K1``: ``d``, unbiased, any sign. ``K2``: ``d^2 / 2``, >= 0, biased. ``K3``: ``exp(-d) + d - 1``,
    >= 0 and unbiased; ``d`` is clamped to +-20 there, so that it stays finite.

    Source: J. Schulman, "Approximating KL divergence" (2020). verl: kl, mse, low_var_kl.
    """
    difference = logprobs_C - other_logprobs_C
    if estimator == "K1":
        return difference
    if estimator == "K2":
        return difference.square() / 2
    bounded = difference.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    return (-bounded).exp() + bounded - 1


def kl_loss_estimate(
    logprobs_C: Tensor,
    old_logprobs_C: Tensor,
    other_logprobs_C: Tensor,
    estimator: LossKlEstimator,
) -> Tensor:
    """The estimate as a term of a loss, where its gradient matters as much as its value.

    ``K1``, ``K2``, ``K3`` as above; on-policy and in expectation the gradient of K1 is 0, that of K2 is
    KL(policy || other)'s, that of K3 KL(other || policy)'s. ``K3Plus``: the value of K3 with the
    gradient of K2 (verl: low_var_kl+). ``K3Corrected``: K3 times the token's own ratio, whatever level
    the objective takes its ratio at: KL(policy || other) in value and gradient, off-policy too
    (DeepSeek-V3.2, arXiv 2512.02556; TRL's default, use_bias_correction_kl).
    """
    if estimator == "K3Plus":
        value = kl_estimate(logprobs_C.detach(), other_logprobs_C, "K3")
        leading = kl_estimate(logprobs_C, other_logprobs_C, "K2")
        return value + leading - leading.detach()
    if estimator == "K3Corrected":
        ratios = bounded_exp(logprobs_C - old_logprobs_C)
        return ratios * kl_estimate(logprobs_C, other_logprobs_C, "K3")
    return kl_estimate(logprobs_C, other_logprobs_C, estimator)
