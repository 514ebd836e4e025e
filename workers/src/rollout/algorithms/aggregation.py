"""How per-token losses become one number, as one concept: a weight for every token.

The loss of a mini-batch is ``sum_c weight_c * loss_c``. The weights hold *global* denominators (all
ranks, all micro-batches of the mini-batch), so the sum of the parts is the loss of the whole, however
it is cut: 1x8 equals 8x1.

| mode         | weight of a token of sequence b        | known as                                    |
| ------------ | -------------------------------------- | ------------------------------------------- |
| TokenMean    | m / sum(m)                             | DAPO; verl token-mean; TRL dapo             |
| SequenceMean | m / (tokens_b * num_sequences)         | GRPO paper; verl seq-mean-token-mean        |
| SequenceSum  | m / num_sequences                      | LUSPO; verl seq-mean-token-sum              |
| FixedLength  | m / (num_sequences * width)            | Dr. GRPO; verl seq-mean-token-sum-norm      |

A sample of several sequences (the rows of one episode) counts once: ``num_sequences`` are samples, and ``tokens_b`` are
those of all its sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["TokenMean", "SequenceMean", "SequenceSum", "FixedLength"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Counts over one whole mini-batch, all ranks."""

    num_tokens: int
    """Tokens under a mask of 1."""
    num_sequences: int
    """Sequences with at least one token in the loss; those of one sample are one."""
    width: int
    """Constant of ``FixedLength``: the completion limit (``sampling.maxNewTokens``), not the longest one met."""


def token_weights(
    mode: Aggregation,
    mask_C: Tensor,
    sequence_C: Tensor,
    whole: Denominators,
    *,
    sampled_C: Tensor | None = None,
) -> Tensor:
    """Weights ``[C]`` in the mask's dtype, 0 where the mask is; sequences must be there whole.

    ``sampled_C``: at each token how many its sample has under a mask of 1, in all its sequences; None: a sample has one
    sequence. Sums to 1 over a mini-batch in the two mean modes. An empty mini-batch gives zeros.
    """
    if mode == "TokenMean":
        return mask_C / max(whole.num_tokens, 1)
    per_sequence_C = mask_C / max(whole.num_sequences, 1)
    if mode == "SequenceMean":
        if sampled_C is not None:
            return per_sequence_C / sampled_C.clamp(min=1)
        return per_sequence_C / _tokens_of_sequence(mask_C, sequence_C)
    if mode == "SequenceSum":
        return per_sequence_C
    return per_sequence_C / max(whole.width, 1)


def _tokens_of_sequence(mask_C: Tensor, sequence_C: Tensor) -> Tensor:
    num_sequences = int(sequence_C.max()) + 1 if sequence_C.numel() else 0
    tokens_B = mask_C.new_zeros(num_sequences).index_add(0, sequence_C, mask_C)
    return tokens_B.clamp(min=1)[sequence_C]


def aggregate(losses_C: Tensor, weights_C: Tensor) -> Tensor:
    """``sum(weights * losses)``. Losses must be finite everywhere, under a weight of 0 too (``masked``)."""
    return (losses_C * weights_C).sum()


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """``values`` with 0 where the mask is: there it may hold anything, NaN included, and gets no gradient."""
    return torch.where(mask > 0, values, 0.0)
