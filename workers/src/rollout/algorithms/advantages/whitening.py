"""Masked whitening: mean 0 and variance 1 over all tokens of a batch, whoever computes them.

    w = (x - mean) / sqrt(var + epsilon)        var = sum(m (x - mean)^2) / (sum(m) - 1)

Statistics are of the whole batch, over all ranks and micro-batches: ``measure_moments``
of all of it, and give them to ``whiten_by`` for each part. Everything is float64, results included.

Source: Schulman et al. implementations of PPO; verl ``masked_whiten`` (unbiased variance, epsilon
1e-8 under the root). OpenRLHF divides by the count and clamps the variance at 1e-8 instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of the values of a batch, float64."""

    count: float = 0.0
    """Values under a mask of 1."""
    mean: float = 0.0
    """Their mean; 0 for none."""
    squares: float = 0.0
    """Sum of squared distances from ``mean``, >= 0."""

    @property
    def variance(self) -> float:
        """Unbiased; 0 for fewer than two values."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


def whiten(values_C: Tensor, mask_C: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Whiten one whole batch, ``[C]`` float64; 0 under the mask, where values may be anything."""
    return whiten_by(values_C, mask_C, measure_moments(values_C, mask_C), epsilon)


def whiten_by(values_C: Tensor, mask_C: Tensor, whole: Moments, epsilon: float = EPSILON) -> Tensor:
    """Whiten a part of a batch with the ``Moments`` of the whole, ``[C]`` float64, 0 under the mask."""
    scaled = (values_C.to(torch.float64) - whole.mean) / (whole.variance + epsilon) ** 0.5
    return torch.where(mask_C > 0, scaled, 0.0)


def measure_moments(values_C: Tensor, mask_C: Tensor) -> Moments:
    """Count, mean and squared distances of the values under a mask of 0 and 1; two passes, float64."""
    kept = values_C.to(torch.float64)[mask_C > 0]
    if kept.numel() == 0:
        return Moments()
    mean = kept.mean()
    return Moments(
        count=float(kept.numel()), mean=float(mean), squares=float((kept - mean).square().sum())
    )
