"""The shape that all policy objectives share, so that one loss can compose them.

An objective is called with the tokens of a micro-batch and gives a loss for every token; ratio level,
advantages, aggregation, importance correction, KL and entropy are settings beside it (``grpo``). It is
a frozen dataclass of its own numbers: ``clip.Clipped``, ``cispo.Cispo``, ``sapo.Sapo``, ``gmpo.Gmpo``,
``vespo.Vespo``, ``dppo.Dppo``, or a function of the user's (``rollout.plugins.user_algorithms``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateTokens:
    """What an objective may see, ``[C]`` each, finite everywhere and 0 under the mask.

    ``logprobs_C`` and ``log_ratios_C`` carry a gradient.
    """

    logprobs_C: Tensor
    """The policy's, in nats."""
    old_logprobs_C: Tensor
    """Those that the ratio is taken over, in nats."""
    log_ratios_C: Tensor
    """``logprobs - old_logprobs`` at the ratio level that was asked for."""
    advantages_C: Tensor
    """A of each token."""
    mask_C: Tensor
    """1 on tokens that the policy sampled, else 0."""
    sequence_C: Tensor
    """int64, each token's sequence: 0, 1, ... in order."""
    importance_C: Tensor | None = None
    """rho, the weight of the correction for the engine's mismatch; None when it is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateLoss:
    """What an objective gives, per token, ``[C]``."""

    losses_C: Tensor
    """Before weights, importance, KL and entropy; carries the gradient."""
    ratios_C: Tensor
    """The ratio, detached, for ``ratio_max``."""
    clipped_low_C: Tensor
    """Bool: the lower bound took the token's gradient away, or changed its weight."""
    clipped_high_C: Tensor
    """The same of the upper bound."""
    corrected: bool = False
    """The loss holds ``importance_C`` already and is not multiplied with it again."""


class Surrogate(Protocol):
    """A policy objective."""

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of every token."""
        ...
