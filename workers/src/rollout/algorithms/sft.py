"""Supervised fine-tuning: cross entropy of the target tokens, mean over the global batch.

    loss = sum_c mask_c * ( -(1 - e) * logprob_c - e * mean_v logprob_cv ) / num_tokens

with label smoothing ``e`` spread evenly over the whole vocabulary ``v`` (Szegedy 2016 section 7;
transformers' ``label_smoothing_factor``). Default: e 0, TRL's ``loss_type="nll"``.
"""

from __future__ import annotations

from torch import Tensor

from rollout.algorithms.aggregation import aggregate, masked


def sft_loss(
    logprobs_C: Tensor,
    mask_C: Tensor,
    num_tokens: int,
    *,
    mean_logprobs_C: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss in nats per token.

    ``mask`` is 1 on tokens to learn: the assistant's for ``CompletionOnly``, all that have a
    predecessor for ``Full``. ``num_tokens`` counts the mask over the whole global batch, so the mean
    is the same however it is packed and split. ``mean_logprobs`` (over the vocabulary, at each token)
    are needed with ``label_smoothing`` above 0.
    """
    losses = -masked(logprobs_C, mask_C)
    if label_smoothing > 0:
        assert mean_logprobs_C is not None
        spread = -masked(mean_logprobs_C, mask_C)
        losses = (1 - label_smoothing) * losses + label_smoothing * spread
    return aggregate(losses, mask_C / max(num_tokens, 1))
