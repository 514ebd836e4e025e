"""Log-probabilities and entropies of scored tokens from logits, without spare [U, V] copies.

Axes: U rows of logits, C scored tokens (each predicted by one of the U), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

BARRED_LOGIT = -1e30
"""Of a token that cannot be sampled: finite, so that its share of an entropy is 0 and not no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresWanted:
    """What is asked of a row's logits.

    Scored token c is ``targets_C[c]``, predicted at position ``source_C[c]`` of the U. Where ``barred_U``,
    no id of ``barred_V`` (bool) could be sampled.
    """

    source_C: torch.Tensor
    targets_C: torch.Tensor
    temperature: float
    entropy: bool
    spread: bool
    barred_U: torch.Tensor | None = None
    barred_V: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Per scored token, [C], in nats; float32, or float64 for logits of it.

    ``entropy_C`` is there when asked for, ``mean_logprobs_C`` (over the whole vocabulary) with ``spread``.
    """

    logprobs_C: torch.Tensor
    entropy_C: torch.Tensor | None
    mean_logprobs_C: torch.Tensor | None = None


def selected_logprobs(
    logits_UV: torch.Tensor,
    source_C: torch.Tensor,
    targets_C: torch.Tensor,
    *,
    temperature: float,
    entropy: bool,
    spread: bool = False,
) -> TokenStats:
    """Score ``targets_C[c]`` under softmax(``logits_UV[source_C[c]]`` / temperature), in float32 or better.

    ``logits_UV`` is consumed: its memory may be overwritten, in the backward too.
    """
    logprobs_C, entropy_U, mean_U = _SelectedLogprobs.apply(
        logits_UV, source_C, targets_C, temperature, entropy, spread
    )
    return TokenStats(
        logprobs_C=logprobs_C,
        entropy_C=entropy_U.index_select(0, source_C) if entropy else None,
        mean_logprobs_C=mean_U.index_select(0, source_C) if spread else None,
    )


class _SelectedLogprobs(torch.autograd.Function):
    """Keeps one [U, V] tensor (log-probabilities) and turns it into the gradient in place."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_UV: torch.Tensor,
        source_C: torch.Tensor,
        targets_C: torch.Tensor,
        temperature: float,
        entropy: bool,  # noqa: FBT001 - autograd functions take positional arguments
        spread: bool,  # noqa: FBT001 - autograd passes by position
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        scaled = logits_UV if temperature == 1.0 else logits_UV / temperature
        exact = torch.promote_types(scaled.dtype, torch.float32)
        logp_UV = torch.log_softmax(scaled, dim=-1, dtype=exact)
        flat = source_C * logp_UV.shape[1] + targets_C
        entropy_U = -(logp_UV.exp() * logp_UV).sum(-1) if entropy else None
        ctx.save_for_backward(logp_UV, source_C, flat, entropy_U)
        ctx.temperature, ctx.dtype = temperature, logits_UV.dtype
        ctx.set_materialize_grads(False)
        mean_U = logp_UV.mean(-1) if spread else None
        return logp_UV.view(-1).index_select(0, flat), entropy_U, mean_U

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        ctx: Any,
        grad_C: torch.Tensor | None,
        grad_entropy_U: torch.Tensor | None,
        grad_mean_U: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        logp_UV, source_C, flat, entropy_U = ctx.saved_tensors
        grad_UV = logit_gradient(
            logp_UV, source_C, flat, entropy_U, (grad_C, grad_entropy_U, grad_mean_U)
        )
        return (grad_UV / ctx.temperature).to(ctx.dtype), None, None, None, None, None


def logit_gradient(
    logp_UV: torch.Tensor,
    source_C: torch.Tensor,
    flat_C: torch.Tensor,
    entropy_U: torch.Tensor | None,
    grads: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
) -> torch.Tensor:
    """Of the logits over the temperature, [U, V], from those of log-probabilities [C], entropies and means [U].

    ``flat_C`` is where the scored tokens lie in ``logp_UV``, flattened.
    """
    grad_C, grad_entropy_U, grad_mean_U = grads
    probs_UV = logp_UV.exp()
    weight_U = logp_UV.new_zeros(logp_UV.shape[0])
    if grad_C is not None:
        weight_U.index_add_(0, source_C, grad_C)
    if grad_mean_U is not None:
        weight_U += grad_mean_U
    grad_UV = probs_UV * -weight_U[:, None]
    if grad_entropy_U is not None and entropy_U is not None:
        grad_UV -= probs_UV * (logp_UV + entropy_U[:, None]) * grad_entropy_U[:, None]
    if grad_C is not None:
        grad_UV.view(-1).index_add_(0, flat_C, grad_C)
    if grad_mean_U is not None:
        grad_UV += grad_mean_U[:, None] / grad_UV.shape[1]
    return grad_UV
