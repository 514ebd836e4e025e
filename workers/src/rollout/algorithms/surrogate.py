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

    ``logprobs_C`` and ``log_ratios_C`` carry a gradient. ``log_ratios_C`` is
    ``logprobs - old_logprobs`` at the ratio level that was asked for. ``importance_C`` is the weight
    of the correction for the engine's mismatch, None when it is off.
    """

    logprobs_C: Tensor
    old_logprobs_C: Tensor
    log_ratios_C: Tensor
    advantages_C: Tensor
    mask_C: Tensor
    sequence_C: Tensor
    importance_C: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateLoss:
    """Per token, ``[C]``: the loss, the ratio (detached), and where each bound took the gradient away.

    ``corrected``: the loss holds ``importance_C`` already and is not multiplied with it again.
    """

    losses_C: Tensor
    ratios_C: Tensor
    clipped_low_C: Tensor
    clipped_high_C: Tensor
    corrected: bool = False


class Surrogate(Protocol):
    """A policy objective."""

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of every token."""
        ...
