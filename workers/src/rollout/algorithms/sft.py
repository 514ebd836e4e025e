"""Supervised fine-tuning: cross entropy of the target tokens, mean over the global batch."""

from __future__ import annotations

from torch import Tensor

from rollout.algorithms.aggregation import aggregate, masked


def sft_loss(logprobs_C: Tensor, mask_C: Tensor, num_tokens: int) -> Tensor:
    """``-sum(mask * logprob) / num_tokens``, in nats per token.

    ``mask`` is 1 on tokens to learn: the assistant's for ``CompletionOnly``, all that have a
    predecessor for ``Full``. ``num_tokens`` counts the mask over the whole global batch, so the mean
    is the same however it is packed and split. TRL: ``loss_type="nll"``.
    """
    return aggregate(-masked(logprobs_C, mask_C), mask_C / max(num_tokens, 1))
