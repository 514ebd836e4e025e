"""Attention of the embedded engine on a GPU, with its log-sum-exp.

Half-precision numbers go through the flash kernel, which reads prompts of unlike lengths side by side, without
pads; others through plain products whose scores are float32.

Axes: B batch, G samples of a group, H query heads, K key-value heads, R = H / K, Q queries, S keys, D head size, P
tokens of all prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_HALVES = frozenset((torch.bfloat16, torch.float16))
_FLASH_HEAD_MAX = 256


def takes_flash(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether the flash kernel takes these numbers."""
    fits = head_size % 8 == 0 and head_size <= _FLASH_HEAD_MAX
    return device.type == "cuda" and dtype in _HALVES and fits


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Which keys each group of queries reads, known to the device alone: int32.

    ``queries`` [B + 1] bound the groups, ``keys`` [B + 1] are where the keys of each begin and ``used`` [B] how many
    it has. The longest of each: of a group's queries at least 2, since the kernel cuts the keys of single ones into a
    number of parts that depends on how many there are.
    """

    queries: torch.Tensor
    queries_max: int
    keys: torch.Tensor
    keys_max: int
    used: torch.Tensor


def attend_side_by_side(
    q: torch.Tensor, kv: torch.Tensor, bounds: SideBySide, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [N, H, D] and float32 log-sum-exp [N, H] of q [N, H, D] at keys and values [2, P, K, D].

    One call of the flash kernel, whatever the bounds are.
    """
    out, lse, *_ = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 - no public call gives the log-sum-exp
        q,
        kv[0],
        kv[1],
        bounds.queries,
        bounds.keys,
        bounds.queries_max,
        bounds.keys_max,
        0.0,
        False,  # noqa: FBT003 - by position: not causal,
        False,  # noqa: FBT003 - and no mask for debugging
        scale=scale,
        seqused_k=bounds.used,
    )
    return out, lse.t()


def attend_on_cuda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    bias: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, H, Q, D] and float32 log-sum-exp [B, H, Q] of q against k, v [B, K, S, D].

    ``bias`` broadcasts to [B, 1, Q, S].
    """
    if bias is None and takes_flash(q.device, q.dtype, q.shape[-1]):
        return _flash(q, k, v, causal=causal, scale=scale)
    return attend_in_products(q, k, v, causal=causal, bias=bias, scale=scale)


def attend_in_products(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    bias: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``attend_on_cuda`` on any device: the queries of a key-value head are one product."""
    num_kv_heads, num_queries, num_keys = k.shape[1], q.shape[2], k.shape[2]
    grouped = q.unflatten(1, (num_kv_heads, -1)).flatten(2, 3)
    scores = (grouped @ k.mT).float().mul_(scale)
    scores = scores.unflatten(2, (-1, num_queries))
    if bias is not None:
        scores += bias[:, :, None]
    if causal:
        future = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(future, float("-inf"))
    lse = scores.logsumexp(-1)
    probs = scores.sub_(lse[..., None]).exp_().flatten(2, 3).to(v.dtype)
    out = (probs @ v).unflatten(2, (-1, num_queries)).flatten(1, 2)
    return out, lse.flatten(1, 2)


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    heads_last = [x.transpose(1, 2) for x in (q, k, v)]
    out, lse, *_ = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 - no public call gives the log-sum-exp
        *heads_last,
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal,
        False,  # noqa: FBT003 - by position: no mask for debugging
        scale=scale,
    )
    return out.transpose(1, 2), lse
