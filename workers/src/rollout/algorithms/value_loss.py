"""The loss of a critic: squared error to the returns, clipped around the values it had before the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    """What a critic's error costs, per token, ``[C]``."""

    losses_C: Tensor
    """Squared error times the coefficient, in units of the reward, squared."""
    clipped_C: Tensor
    """Bool: the clipped error is the larger, so that the token has no gradient."""


def clipped_value_loss(
    values_C: Tensor,
    old_values_C: Tensor,
    returns_C: Tensor,
    *,
    clip: float = 0.2,
    coefficient: float = 0.5,
) -> ValueLoss:
    """``coefficient * max((v - R)^2, (clip(v, v_old - clip, v_old + clip) - R)^2)``.

    ``old_values_C`` are those the critic gave before the step's first update, ``returns_C`` are of
    then too; neither carries a gradient. ``clip`` 0 is off: the plain squared error. In units of the
    reward, squared.

    Source: PPO's reference implementation (OpenAI baselines ppo2); coefficient 0.5 and clip 0.5 in
    verl 0.9.1, clip 0.2 in TRL.
    """
    plain_C = (values_C - returns_C).square()
    if clip == 0:
        return ValueLoss(
            losses_C=coefficient * plain_C, clipped_C=torch.zeros_like(plain_C, dtype=torch.bool)
        )
    near_C = torch.clamp(values_C, old_values_C - clip, old_values_C + clip)
    bounded_C = (near_C - returns_C).square()
    return ValueLoss(
        losses_C=coefficient * torch.maximum(plain_C, bounded_C),
        clipped_C=(bounded_C > plain_C).detach(),
    )


def explained_variance(values_C: Tensor, returns_C: Tensor) -> float | None:
    """``1 - Var(R - V) / Var(R)``: 1 is a perfect critic, 0 one that knows the mean, below 0 worse.

    None where the returns do not vary: there is nothing to explain. Float64.
    """
    returns, errors = returns_C.double(), returns_C.double() - values_C.double()
    if returns.numel() < 2 or float(returns.var()) == 0:
        return None
    return float(1 - errors.var() / returns.var())
