"""Direct preference optimization: a classifier of pairs whose score is the policy's own log ratio.

    h = beta * ((log pi(c) - log ref(c)) - (log pi(r) - log ref(r)))

| form         | loss of a pair, with label smoothing e                       | source                     |
| ------------ | ------------------------------------------------------------ | -------------------------- |
| Sigmoid      | -log sigmoid(h)                                              | Rafailov 2023 eq. 7        |
| Conservative | -(1 - e) log sigmoid(h) - e log sigmoid(-h)                  | Mitchell 2023 (cDPO)       |
| Robust       | (-(1 - e) log sigmoid(h) + e log sigmoid(-h)) / (1 - 2e)     | Chowdhury 2024 eq. 12      |
| Hinge        | max(0, 1 - h)                                                | Zhao 2023 (SLiC)           |

Logprobs are sums over the answer's tokens. Averaged over the pairs of the global batch.
Defaults: beta 0.1 (the paper, TRL, OpenRLHF). TRL 1.16 ignores label smoothing for ``sigmoid``; here the
forms that do not use it refuse it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from rollout.algorithms.preference.pairs import PairLogprobs, PairLosses, reference_margins

DpoForm = Literal["Sigmoid", "Conservative", "Robust", "Hinge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoSettings:
    """The numbers of the loss."""

    beta: float = 0.1
    """Scale of the log ratios, > 0, per nat: larger stays closer to the reference."""
    form: DpoForm = "Sigmoid"
    """A row of the module's table (``loss_type`` of TRL)."""
    label_smoothing: float = 0.0
    """e, the assumed share of swapped labels, in [0, 0.5); ``Conservative`` and ``Robust`` read it."""
    sft_coefficient: float = 0.0
    """Weighs an added negative log-likelihood of the chosen answers, a mean over their tokens in the global batch
    (Pang 2024, TRL ``sft``); it is the caller's to add. 0: none."""


def dpo_losses(pairs: PairLogprobs, settings: DpoSettings) -> PairLosses:
    """The loss of each pair; rewards are ``beta`` times the log ratio to the reference."""
    chosen, rejected = reference_margins(pairs)
    return PairLosses(
        losses_P=_losses(settings.beta * (chosen - rejected), settings),
        chosen_rewards_P=settings.beta * chosen.detach(),
        rejected_rewards_P=settings.beta * rejected.detach(),
    )


def _losses(scores: Tensor, settings: DpoSettings) -> Tensor:
    smoothing = settings.label_smoothing
    if settings.form == "Hinge":
        return (1 - scores).clamp(min=0)
    right, swapped = -logsigmoid(scores), -logsigmoid(-scores)
    if settings.form == "Conservative":
        return (1 - smoothing) * right + smoothing * swapped
    if settings.form == "Robust":
        return ((1 - smoothing) * right - smoothing * swapped) / (1 - 2 * smoothing)
    return right
