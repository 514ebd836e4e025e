"""Flash attention that also gives its log-sum-exp, and takes it back in the backward.

``F.scaled_dot_product_attention`` hides the log-sum-exp; the ATen operator behind it on CPUs does
not. Other devices use the same formulas written out: correct, one [Q, S] matrix a head, not fast.

Axes: B stretches, H query heads, K key-value heads (H is a multiple), Q queries, S keys, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - see above
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001 - torch has no public name for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """``q`` is [B, H, Q, D], ``k`` and ``v`` [B, K, S, D]; ``bias`` broadcasts to [B, H, Q, S]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    causal: bool
    scale: float


Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of q, k and v, in their shapes."""


def attend(x: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, H, Q, D] and float32 log-sum-exp [B, H, Q] of softmax(scale q k' + bias) v."""
    if x.q.device.type == "cpu":
        return _FLASH(x.q, x.k, x.v, 0.0, x.causal, attn_mask=_mask(x), scale=x.scale)
    return attend_plainly(x)


def attend_backward(
    grad_out: torch.Tensor, x: Inputs, out: torch.Tensor, lse: torch.Tensor
) -> Gradients:
    """Gradients of q, k and v. ``out`` and ``lse`` may belong to a softmax over more keys than ``k``."""
    if x.q.device.type == "cpu":
        rest = {"attn_mask": _mask(x), "scale": x.scale}
        return _FLASH_BACKWARD(grad_out, x.q, x.k, x.v, out, lse, 0.0, x.causal, **rest)
    return attend_plainly_backward(grad_out, x, out, lse)


def attend_plainly(x: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """``attend`` on any device."""
    scores = _scores(x)
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp() @ _wide(x.v, x).float()
    return out.to(x.q.dtype), lse


def attend_plainly_backward(
    grad_out: torch.Tensor, x: Inputs, out: torch.Tensor, lse: torch.Tensor
) -> Gradients:
    """``attend_backward`` on any device."""
    grad = grad_out.float()
    probs = (_scores(x) - lse[..., None]).exp()
    delta = (grad * out.float()).sum(-1, keepdim=True)
    grad_scores = probs * (grad @ _wide(x.v, x).float().mT - delta) * x.scale
    grad_q = grad_scores @ _wide(x.k, x).float()
    grad_k = _narrow(grad_scores.mT @ x.q.float(), x)
    grad_v = _narrow(probs.mT @ grad, x)
    return grad_q.to(x.q.dtype), grad_k.to(x.k.dtype), grad_v.to(x.v.dtype)


def _mask(x: Inputs) -> torch.Tensor | None:
    return None if x.bias is None else x.bias.to(x.q.dtype)


def _scores(x: Inputs) -> torch.Tensor:
    scores = x.q.float() @ _wide(x.k, x).float().mT * x.scale
    if x.bias is not None:
        scores = scores + x.bias
    if x.causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores


def _wide(x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return x.repeat_interleave(inputs.q.shape[1] // x.shape[1], dim=1)


def _narrow(grad: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return grad.unflatten(1, (inputs.k.shape[1], -1)).sum(2)
