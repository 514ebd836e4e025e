"""Estimators of KL(policy || other) from tokens that the policy sampled."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rollout.algorithms.clip import LOG_RATIO_MAX

KlEstimator = Literal["K1", "K2", "K3"]


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
