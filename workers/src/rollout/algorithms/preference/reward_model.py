"""Bradley-Terry reward model: scores whose difference is the log odds that a person prefers the first.

    loss = -log sigmoid( s(c) - s(r) - m ) + k * (s(c) + s(r))^2

``s`` is the scalar head at the answer's last token, ``m`` the pair's wanted margin (0 without one), ``k``
the centering coefficient that keeps scores around 0. Averaged over the pairs of the global batch.
Source: Ouyang 2022 eq. 1; margin Touvron 2023 (Llama 2) eq. 2; centering Eisenstein 2023 eq. 2.
Defaults: no margin, k 0 (TRL; Eisenstein: 0.01).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from rollout.algorithms.preference.pairs import PairLosses


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelSettings:
    """``centering_coefficient`` 0 is off."""

    centering_coefficient: float = 0.0


def reward_model_losses(
    chosen_P: Tensor, rejected_P: Tensor, margins_P: Tensor, settings: RewardModelSettings
) -> PairLosses:
    """The loss of each pair from the scores of its answers; rewards are the scores."""
    losses = -logsigmoid(chosen_P - rejected_P - margins_P)
    if settings.centering_coefficient > 0:
        losses = losses + settings.centering_coefficient * (chosen_P + rejected_P).square()
    return PairLosses(
        losses_P=losses,
        chosen_rewards_P=chosen_P.detach(),
        rejected_rewards_P=rejected_P.detach(),
    )
