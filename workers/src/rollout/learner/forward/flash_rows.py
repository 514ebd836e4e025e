"""Attention over a packed row on CUDA devices: two calls of the flash kernel for sequences of unlike lengths.

The first lets every segment attend causally to itself, the second the completions of each group to the whole of
their prompt, which is read once however many they are. Both are merged by their log-sum-exps; the backward calls
the same kernels with the merged output and log-sum-exp, which is exact. No pads, no mask, no copy of a prompt.

``torch.nn.attention.varlen`` hides the backward, and with it the log-sum-exp that it takes; the ATen operators
behind it do not. They take half-precision numbers and heads of a multiple of 8, at most 256 (``fits``); other
rows go through the calls of ``attention``.

Axes: N tokens of the row, M tokens of completions, P tokens of prompts, H query heads, K key-value heads, D head
size, S stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from rollout.learner.forward.layout import RowSegment

HEAD_SIZE_MAX = 256

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of q, k and v, in their shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Neighbouring stretches: ``bounds`` [S + 1] int32, from 0 to the number of tokens, and the longest."""

    bounds: torch.Tensor
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """Some of the row: ``take`` are its row positions, ``home`` [N] says where each of the row lies among them.

    What is not among them has its number of positions there.
    """

    stretches: Stretches
    take: torch.Tensor
    home: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Completions at their prompts, group by group."""

    queries: RowPart
    keys: RowPart


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashPlan:
    """The calls of a row; ``shared`` is None where no segment continues another."""

    own: Stretches
    shared: Shared | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """Queries [M, H, D] against keys and values [P, K, D], stretch by stretch."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    queries: Stretches
    keys: Stretches
    causal: bool
    scale: float


def fits(query: torch.Tensor) -> bool:
    """Whether the kernel takes queries of this device, type and head size."""
    size = query.shape[-1]
    halves = query.dtype in {torch.bfloat16, torch.float16}
    return query.is_cuda and halves and size % 8 == 0 and size <= HEAD_SIZE_MAX


def flash_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: tuple[RowSegment, ...],
    scale: float,
) -> torch.Tensor:
    """[1, H, N, D] queries against [1, K, N, D] keys -> [1, N, H, D]; differentiable."""
    plan = plan_flash(segments, query.device)
    return _FlashRows.apply(query, key, value, plan, scale)


@lru_cache(maxsize=16)
def plan_flash(segments: tuple[RowSegment, ...], device: torch.device) -> FlashPlan:
    """The calls of a row whose ``segments`` lie side by side from position 0."""
    own = _stretches([segment.length for segment in segments], device)
    followers = [segment for segment in segments if segment.prompt is not None]
    if not followers:
        return FlashPlan(own=own, shared=None)
    groups = [
        (segments[index or 0], list(same))
        for index, same in groupby(followers, key=lambda segment: segment.prompt)
    ]
    num_tokens = segments[-1].end
    shared = Shared(
        queries=_part([same for _, same in groups], num_tokens, device),
        keys=_part([[prompt] for prompt, _ in groups], num_tokens, device),
    )
    return FlashPlan(own=own, shared=shared)


def _part(
    stretches: Sequence[Sequence[RowSegment]], num_tokens: int, device: torch.device
) -> RowPart:
    places = [range(one.start, one.end) for stretch in stretches for one in stretch]
    take = torch.cat([torch.arange(place.start, place.stop) for place in places])
    home = torch.full((num_tokens,), len(take))
    home[take] = torch.arange(len(take))
    lengths = [sum(one.length for one in stretch) for stretch in stretches]
    return RowPart(
        stretches=_stretches(lengths, device), take=take.to(device), home=home.to(device)
    )


def _stretches(lengths: Sequence[int], device: torch.device) -> Stretches:
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return Stretches(bounds=ends.to(device, torch.int32), longest=max(lengths, default=0))


class _FlashRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: FlashPlan,
        scale: float,
    ) -> torch.Tensor:
        row = tuple(x[0].transpose(0, 1) for x in (query, key, value))
        out_NHD, lse_HN = _kernel(_own(row, plan, scale))
        if plan.shared is not None:
            found = _kernel(_shared(row, plan.shared, scale))
            out_NHD, lse_HN = _merged(out_NHD, lse_HN, plan.shared, *found)
        ctx.save_for_backward(query, key, value, out_NHD, lse_HN)
        ctx.plan, ctx.scale = plan, scale
        return out_NHD[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        query, key, value, out_NHD, lse_HN = ctx.saved_tensors
        row = tuple(x[0].transpose(0, 1) for x in (query, key, value))
        grad_NHD, shared = grad_out[0].contiguous(), ctx.plan.shared
        grads = _kernel_backward(grad_NHD, _own(row, ctx.plan, ctx.scale), out_NHD, lse_HN)
        if shared is not None:
            take = shared.queries.take
            out_MHD, lse_HM = out_NHD[take], lse_HN[:, take].contiguous()
            call = _shared(row, shared, ctx.scale)
            parts = _kernel_backward(grad_NHD[take], call, out_MHD, lse_HM)
            homes = (shared.queries.home, shared.keys.home, shared.keys.home)
            grads = tuple(
                grad + _spread(part, home)
                for grad, part, home in zip(grads, parts, homes, strict=True)
            )
        return (*(grad.transpose(0, 1)[None] for grad in grads), None, None)


def _own(row: tuple[torch.Tensor, ...], plan: FlashPlan, scale: float) -> _Call:
    q, k, v = row
    return _Call(q=q, k=k, v=v, queries=plan.own, keys=plan.own, causal=True, scale=scale)


def _shared(row: tuple[torch.Tensor, ...], shared: Shared, scale: float) -> _Call:
    q, k, v = row
    return _Call(
        q=q[shared.queries.take],
        k=k[shared.keys.take],
        v=v[shared.keys.take],
        queries=shared.queries.stretches,
        keys=shared.keys.stretches,
        causal=False,
        scale=scale,
    )


def _merged(
    out_NHD: torch.Tensor,
    lse_HN: torch.Tensor,
    shared: Shared,
    far_MHD: torch.Tensor,
    far_lse_HM: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One softmax of two pieces, for the rows that have both."""
    nothing = far_lse_HM.new_full((far_lse_HM.shape[0], 1), float("-inf"))
    far_lse_HN = torch.cat((far_lse_HM, nothing), dim=1)[:, shared.queries.home]
    both_HN = torch.logaddexp(lse_HN, far_lse_HN)
    near, far = ((part - both_HN).exp().t()[..., None] for part in (lse_HN, far_lse_HN))
    out = out_NHD * near + _spread(far_MHD, shared.queries.home) * far
    return out.to(out_NHD.dtype), both_HN


def _spread(x_MHD: torch.Tensor, home_N: torch.Tensor) -> torch.Tensor:
    """[M, ...] -> [N, ...], zero in rows that are not among the M."""
    return torch.cat((x_MHD, x_MHD.new_zeros(1, *x_MHD.shape[1:])))[home_N]


def _kernel(x: _Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [M, H, D] and float32 log-sum-exp [H, M]."""
    out_MHD, lse_HM, *_ = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 - see above
        x.q,
        x.k,
        x.v,
        x.queries.bounds,
        x.keys.bounds,
        x.queries.longest,
        x.keys.longest,
        0.0,
        x.causal,
        False,  # noqa: FBT003 - the operator takes it by position: no mask for debugging
        scale=x.scale,
    )
    return out_MHD, lse_HM


def _kernel_backward(
    grad_MHD: torch.Tensor, x: _Call, out_MHD: torch.Tensor, lse_HM: torch.Tensor
) -> Gradients:
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=x.q.device)
    return torch.ops.aten._flash_attention_backward(  # noqa: SLF001 - see above
        grad_MHD,
        x.q,
        x.k,
        x.v,
        out_MHD,
        lse_HM,
        x.queries.bounds,
        x.keys.bounds,
        x.queries.longest,
        x.keys.longest,
        0.0,
        x.causal,
        no_dropout,
        no_dropout.new_zeros(()),
        scale=x.scale,
    )
