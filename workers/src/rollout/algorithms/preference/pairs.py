"""What the losses on pairs of answers share: summed logprobs of both, and implicit rewards.

Axes: P pairs, C scored tokens (of all answers of a micro-batch), S answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rollout.algorithms.aggregation import masked


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLogprobs:
    """Logprobs in nats summed over the tokens of each answer, and how many tokens those are (at least 1).

    Only ``chosen_P`` and ``rejected_P`` (the policy's) carry a gradient. The reference's are None for
    losses that know none.
    """

    chosen_P: Tensor
    rejected_P: Tensor
    chosen_tokens_P: Tensor
    rejected_tokens_P: Tensor
    reference_chosen_P: Tensor | None = None
    reference_rejected_P: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLosses:
    """A loss for each pair, to be averaged over the global batch, and the answers' detached rewards.

    A reward is what the loss compares, in the loss's own scale; their order is the preference.
    """

    losses_P: Tensor
    chosen_rewards_P: Tensor
    rejected_rewards_P: Tensor


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
