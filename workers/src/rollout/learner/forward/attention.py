"""Attention over a packed row, as a transformers attention function.

Two softmax pieces meet in a completion token: its prompt and its own past. Each piece is computed by
the device's flash kernel and they are merged by their log-sum-exps; the backward calls the same
kernels with the *merged* output and log-sum-exp, which is exact (as in ring attention). No mask of
row x row and no copy of the prompt per sample is ever made. Layers with a window shorter than a sequence,
capped scores or sinks go through ``blocks``, half-precision rows on CUDA devices through ``flash_rows``.

Axes: N tokens of the row, H heads, D head size, B stretches in a call, L tokens of a stretch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rollout.learner.forward.blocks import (
    Scoring,
    block_attention,
    masked_attention,
    plan_blocks,
)
from rollout.learner.forward.flash_rows import fits, flash_rows
from rollout.learner.forward.kernels import Gradients, Inputs, attend, attend_backward
from rollout.learner.forward.layout import RowBucket, RowLayout, SegmentRun
from rollout.learner.forward.sequence_parallel.slices import (
    RowSlice,
    attend_whole,
    heads_of_rank,
)

IMPLEMENTATION = "rollout_rows"
"""The name under which transformers finds this attention."""


def register() -> None:
    """Tell transformers about the packed-row attention; idempotent."""
    AttentionInterface.register(IMPLEMENTATION, rows_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def rows_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    rollout_layout: RowLayout | None = None,
    rollout_slice: RowSlice | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """[1, H, N, D] queries -> [1, N, H, D]. Without a layout: plain attention under the given mask.

    Of ``kwargs`` transformers' ``sliding_window`` (tokens that one sees, itself included), ``softcap`` and
    ``s_aux`` (sinks) count.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scoring = Scoring(scale=scale, cap=kwargs.pop("softcap", None), sinks=kwargs.pop("s_aux", None))
    sliding_window = kwargs.pop("sliding_window", None)
    plainly = scoring.cap is None and scoring.sinks is None
    if rollout_layout is None:
        if plainly:
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, scaling=scaling, **kwargs
            )
        return _masked(query, key, value, attention_mask, scoring), None
    window = sliding_window if (sliding_window or 0) < rollout_layout.longest else None
    if rollout_slice is None:
        return _attend_row(query, key, value, rollout_layout, scoring, window), None
    scoring = replace(scoring, sinks=heads_of_rank(scoring.sinks, rollout_slice))

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return _attend_row(query, key, value, rollout_layout, scoring, window)

    return attend_whole(attend, (query, key, value), rollout_slice), None


def _attend_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: RowLayout,
    scoring: Scoring,
    window: int | None,
) -> torch.Tensor:
    plainly = scoring.cap is None and scoring.sinks is None
    if window or not plainly or query.shape[-1] != value.shape[-1]:
        plan = plan_blocks(layout.segments, window or None, query.device)
        return block_attention(query, key, value, plan, scoring)
    if fits(query):
        return flash_rows(query, key, value, layout.segments, scoring.scale)
    return _RowAttention.apply(query, key, value, layout, scoring.scale)


def _masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    """Plain calls of layers whose scores SDPA does not know."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if mask is None:
        shape = (1, 1, num_queries, num_keys)
        ones = torch.ones(shape, dtype=torch.bool, device=query.device)
        mask = ones.tril(num_keys - num_queries)
    allowed = mask[..., :num_keys] if mask.dtype == torch.bool else mask[..., :num_keys] >= 0
    return masked_attention(query, key, value, allowed, scoring).transpose(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One kernel call: stretches of queries against stretches of keys. ``queries is keys`` = causal."""

    queries: SegmentRun | RowBucket
    keys: SegmentRun | RowBucket
    bias: torch.Tensor | None

    @property
    def causal(self) -> bool:
        return self.queries is self.keys


def _self_calls(layout: RowLayout) -> Iterator[_Call]:
    for stretch in (*layout.runs, *layout.buckets):
        yield _Call(queries=stretch, keys=stretch, bias=None)


def _cross_calls(layout: RowLayout) -> Iterator[_Call]:
    for cross in (*layout.crosses, *layout.cross_buckets):
        yield _Call(queries=cross.queries, keys=cross.keys, bias=getattr(cross, "bias", None))


class _RowAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layout: RowLayout,
        scale: float,
    ) -> torch.Tensor:
        row = tuple(x[0].transpose(0, 1) for x in (query, key, value))
        out_NHD = torch.empty(row[0].shape, dtype=query.dtype, device=query.device)
        exact = torch.promote_types(query.dtype, torch.float32)
        lse_NH = torch.empty(row[0].shape[:2], dtype=exact, device=query.device)
        for call in _self_calls(layout):
            out, lse = attend(_inputs(call, row, scale))
            _put(out_NHD, call.queries, out)
            _put(lse_NH, call.queries, lse)
        for call in _cross_calls(layout):
            _merge(out_NHD, lse_NH, call.queries, *attend(_inputs(call, row, scale)))
        ctx.save_for_backward(query, key, value, out_NHD, lse_NH)
        ctx.layout, ctx.scale = layout, scale
        return out_NHD[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        query, key, value, out, lse = ctx.saved_tensors
        row = (*(x[0].transpose(0, 1) for x in (query, key, value)), out, lse, grad_out[0])
        grads = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in row[:3])
        for call in _self_calls(ctx.layout):
            for grad, part in zip(grads, _attend_backward(call, row, ctx.scale), strict=True):
                _put(grad, call.queries, part)
        for call in _cross_calls(ctx.layout):
            parts = _attend_backward(call, row, ctx.scale)
            stretches = (call.queries, call.keys, call.keys)
            for grad, stretch, part in zip(grads, stretches, parts, strict=True):
                _add(grad, stretch, part)
        return (*(grad.transpose(0, 1)[None] for grad in grads), None, None)


def _inputs(call: _Call, row: tuple[torch.Tensor, ...], scale: float) -> Inputs:
    q, k, v = row[:3]
    return Inputs(
        q=_get(q, call.queries),
        k=_get(k, call.keys),
        v=_get(v, call.keys),
        bias=call.bias,
        causal=call.causal,
        scale=scale,
    )


def _attend_backward(call: _Call, row: tuple[torch.Tensor, ...], scale: float) -> Gradients:
    *_, out, lse, grad_out = row
    return attend_backward(
        _get_grad(grad_out, call.queries),
        _inputs(call, row, scale),
        _get(out, call.queries),
        _get(lse, call.queries),
    )


def _merge(
    out_NHD: torch.Tensor,
    lse_NH: torch.Tensor,
    stretch: SegmentRun | RowBucket,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Fold one more softmax piece into the rows of ``stretch``."""
    old = _real(lse_NH, stretch)
    new = _flat(lse, stretch)
    both = torch.logaddexp(old, new)
    merged = _real(out_NHD, stretch) * (old - both).exp()[..., None]
    merged += _flat(out, stretch) * (new - both).exp()[..., None]
    _put_real(out_NHD, stretch, merged.to(out_NHD.dtype))
    _put_real(lse_NH, stretch, both)


# Between the row [N, H, ...] and the padded stretches of one call [B, H, L, ...].


def _get(x: torch.Tensor, stretch: SegmentRun | RowBucket) -> torch.Tensor:
    if isinstance(stretch, SegmentRun):
        part = x[stretch.start : stretch.end]
    else:
        part = x.index_select(0, stretch.take)
    return part.view(stretch.count, stretch.length, *x.shape[1:]).transpose(1, 2)


def _get_grad(x: torch.Tensor, stretch: SegmentRun | RowBucket) -> torch.Tensor:
    """As ``_get``, with zeros at the pads, so that they pass nothing back."""
    if isinstance(stretch, SegmentRun):
        return _get(x, stretch)
    padded = x.new_zeros(stretch.count * stretch.length, *x.shape[1:])
    padded.index_copy_(0, stretch.flat, x.index_select(0, stretch.rows))
    return padded.view(stretch.count, stretch.length, *x.shape[1:]).transpose(1, 2)


def _flat(part: torch.Tensor, stretch: SegmentRun | RowBucket) -> torch.Tensor:
    """[B, H, L, ...] -> the real tokens, [tokens, H, ...]."""
    rows = part.transpose(1, 2).flatten(0, 1)
    return rows if isinstance(stretch, SegmentRun) else rows.index_select(0, stretch.flat)


def _real(x: torch.Tensor, stretch: SegmentRun | RowBucket) -> torch.Tensor:
    if isinstance(stretch, SegmentRun):
        return x[stretch.start : stretch.end]
    return x.index_select(0, stretch.rows)


def _put_real(x: torch.Tensor, stretch: SegmentRun | RowBucket, rows: torch.Tensor) -> None:
    if isinstance(stretch, SegmentRun):
        x[stretch.start : stretch.end] = rows
    else:
        x.index_copy_(0, stretch.rows, rows)


def _put(x: torch.Tensor, stretch: SegmentRun | RowBucket, part: torch.Tensor) -> None:
    _put_real(x, stretch, _flat(part, stretch).to(x.dtype))


def _add(x: torch.Tensor, stretch: SegmentRun | RowBucket, part: torch.Tensor) -> None:
    rows = _flat(part, stretch).to(x.dtype)
    if isinstance(stretch, SegmentRun):
        x[stretch.start : stretch.end] += rows
    else:
        x.index_add_(0, stretch.rows, rows)
