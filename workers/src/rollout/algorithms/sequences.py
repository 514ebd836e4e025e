"""Sums over whole sequences of a micro-batch, and back to their tokens. Differentiable."""

from __future__ import annotations

from torch import Tensor


def sum_by_sequence(values_C: Tensor, sequence_C: Tensor) -> Tensor:
    """``[B]``: the sum of each sequence's tokens; a sequence must be there whole."""
    num_sequences = int(sequence_C.max()) + 1 if sequence_C.numel() else 0
    return values_C.new_zeros(num_sequences).index_add(0, sequence_C, values_C)


def mean_by_sequence(values_C: Tensor, mask_C: Tensor, sequence_C: Tensor) -> Tensor:
    """``[B]``: the mean over each sequence's unmasked tokens, 0 where it has none.

    ``values_C`` must be finite under the mask too (``aggregation.masked``).
    """
    tokens_B = sum_by_sequence(mask_C, sequence_C).clamp(min=1)
    return sum_by_sequence(values_C * mask_C, sequence_C) / tokens_B
