"""Losses of the caller's own: computed here from logprobs, sent as the weights that have the same gradient.

The only part of the client that imports torch, when such a loss is asked for.

Axes: N tokens of a datum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollout.client.data import Datum, TensorData

CustomLoss = Callable[[Sequence[Datum], list[Any]], tuple[Any, Mapping[str, float]]]


def as_zero_weights(data: Sequence[Datum]) -> list[Datum]:
    """The data as a cross entropy reads them, to have their logprobs. Raises ValueError without targets."""
    for i, datum in enumerate(data):
        if "target_tokens" not in datum.loss_fn_inputs:
            raise ValueError(
                f"data[{i}].loss_fn_inputs.target_tokens: expected the tokens to score, got none"
            )
    return as_weights(data, [np.zeros(one.model_input.length, dtype="<f4") for one in data])


def as_weights(data: Sequence[Datum], weights: Sequence[np.ndarray]) -> list[Datum]:
    """The data with these weights [N]."""
    return [
        Datum(
            datum.model_input,
            {
                "target_tokens": datum.loss_fn_inputs["target_tokens"],
                "weights": TensorData.from_numpy(one),
            },
        )
        for datum, one in zip(data, weights, strict=True)
    ]


def differentiate(
    data: Sequence[Datum], logprobs: Sequence[TensorData], loss_fn: CustomLoss
) -> tuple[list[np.ndarray], Mapping[str, float]]:
    """Minus the loss's gradient by each logprob, float32 [N] of each datum, and the metrics.

    A cross entropy with these weights has the loss's gradient. Raises what the loss raises, and TypeError for no scalar.
    """
    import torch

    leaves = [one.to_torch().requires_grad_() for one in logprobs]
    loss, metrics = loss_fn(data, leaves)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise TypeError(
            f"loss_fn: expected a scalar tensor that depends on the logprobs, got {loss!r}"
        )
    loss.backward()
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in leaves]
    return [-one.numpy() for one in gradients], metrics
