"""What the losses on pairs of answers share: summed logprobs of both, and implicit rewards.

Axes: P pairs, C scored tokens (of all answers of a micro-batch), S answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rollout.algorithms.aggregation import masked


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLogprobs:
    """What a loss on P pairs reads. Logprobs are in nats, summed over an answer's tokens.

    Only ``chosen_P`` and ``rejected_P`` carry a gradient.
    """

    chosen_P: Tensor
    """The policy's, of the better answers."""
    rejected_P: Tensor
    """The policy's, of the worse ones."""
    chosen_tokens_P: Tensor
    """Tokens that the sum is over, at least 1."""
    rejected_tokens_P: Tensor
    """The same of the worse answers."""
    reference_chosen_P: Tensor | None = None
    """The reference policy's; None for losses that know none (ORPO, SimPO)."""
    reference_rejected_P: Tensor | None = None
    """The same of the worse answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLosses:
    """What a loss says of P pairs.

    A reward is what the loss compares, in the loss's own scale; their order is the preference.
    """

    losses_P: Tensor
    """To be averaged over the global batch; carries the gradient."""
    chosen_rewards_P: Tensor
    """Implicit rewards of the better answers, detached."""
    rejected_rewards_P: Tensor
    """Those of the worse ones, detached."""


def sum_answers(values_C: Tensor, mask_C: Tensor, answer_C: Tensor, num_answers: int) -> Tensor:
    """``values`` summed over each answer's tokens where the mask is 1: ``[S]``; ``answer_C`` is int64."""
    return values_C.new_zeros(num_answers).index_add(0, answer_C, masked(values_C, mask_C))


def reference_margins(pairs: PairLogprobs) -> tuple[Tensor, Tensor]:
    """Policy minus reference for the chosen and the rejected answers, in nats ``[P]``."""
    assert pairs.reference_chosen_P is not None
    assert pairs.reference_rejected_P is not None
    return (
        pairs.chosen_P - pairs.reference_chosen_P,
        pairs.rejected_P - pairs.reference_rejected_P,
    )
