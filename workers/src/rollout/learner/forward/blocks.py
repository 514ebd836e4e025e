"""Attention over a packed row, sequence by sequence in blocks of queries: windows, soft caps and sinks.

A block of queries meets the keys that its sequence lets it see, prompt included, under one mask; the work
of a window of W keys grows with W, not with the length of the sequence. Slower than the calls of ``layout``,
which full attention goes on using. Differentiable by autograd alone.

Axes: N tokens of the row, H heads, D head size, B blocks in a call, Q queries, K keys of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch
from torch.nn.functional import scaled_dot_product_attention

from rollout.learner.forward.layout import RowSegment

QUERIES_MAX = 256
"""Queries of a block."""

SCORES_MAX = 1 << 22
"""Scores of a head in one call; more blocks go into a further one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What a layer does to its scores. ``cap`` bounds them by a tanh; ``sinks`` [H] join each softmax."""

    scale: float
    cap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCall:
    """Blocks padded to one shape: row positions of queries [B * Q] and of keys [B * K].

    ``allowed`` [B, 1, Q, K]; ``real`` is where the queries that are no pads lie in the padded batch.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    allowed: torch.Tensor
    real: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """All calls of a row; ``order`` [N] is where each row position lies in what they give, side by side."""

    calls: tuple[BlockCall, ...]
    order: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Row positions of one block's queries and keys, and the place of each in its sequence."""

    queries: range
    first: int
    keys: torch.Tensor
    keys_first: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.queries), len(self.keys)


def block_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: BlockPlan,
    scoring: Scoring,
) -> torch.Tensor:
    """[1, H, N, D] queries against [1, H or fewer, N, D] keys -> [1, N, H, D]."""
    rows = [x[0].transpose(0, 1) for x in (query, key, value)]
    parts = []
    for call in plan.calls:
        num_blocks = call.allowed.shape[0]
        q = _stretches(rows[0], call.queries, num_blocks)
        k, v = (_stretches(x, call.keys, num_blocks) for x in rows[1:])
        out = masked_attention(q, k, v, call.allowed, scoring)
        parts.append(out.transpose(1, 2).flatten(0, 1).index_select(0, call.real))
    return torch.cat(parts).index_select(0, plan.order)[None]


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor, scoring: Scoring
) -> torch.Tensor:
    """[B, H, Q, D] against [B, K, S, D] where ``allowed`` [B, 1, Q, S]; the same shape as ``q``."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (k, v))
    if scoring.cap is None and scoring.sinks is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scoring.scale)
    scores = (q @ k.mT).float() * scoring.scale
    if scoring.cap is not None:
        scores = torch.tanh(scores / scoring.cap) * scoring.cap
    scores = scores.masked_fill(~allowed, float("-inf"))
    if scoring.sinks is None:
        return scores.softmax(-1).to(v.dtype) @ v
    sinks = scoring.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1].to(v.dtype) @ v


@lru_cache(maxsize=16)
def plan_blocks(
    segments: tuple[RowSegment, ...], window: int | None, device: torch.device
) -> BlockPlan:
    """The blocks of a row in which a token sees at most ``window`` tokens, itself included; None: all before it."""
    blocks = [block for segment in segments for block in _cut(segment, segments, window)]
    blocks.sort(key=lambda block: block.shape)
    calls, where = [], []
    for same in _together(blocks):
        calls.append(_call(same, window, device))
        where += [row for block in same for row in block.queries]
    order = torch.empty(len(where), dtype=torch.int64)
    order[torch.tensor(where)] = torch.arange(len(where))
    return BlockPlan(calls=tuple(calls), order=order.to(device))


def _cut(
    segment: RowSegment, segments: Sequence[RowSegment], window: int | None
) -> Iterator[_Block]:
    """Blocks of one segment; ``rows`` are the row positions of its whole sequence."""
    prompt = None if segment.prompt is None else segments[segment.prompt]
    before = [] if prompt is None else list(range(prompt.start, prompt.end))
    rows = torch.tensor([*before, *range(segment.start, segment.end)])
    for start in range(segment.start, segment.end, QUERIES_MAX):
        end = min(start + QUERIES_MAX, segment.end)
        first = len(before) + start - segment.start
        lowest = 0 if window is None else max(0, first - window + 1)
        yield _Block(
            queries=range(start, end),
            first=first,
            keys=rows[lowest : first + end - start],
            keys_first=lowest,
        )


def _together(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Blocks of like shapes, at most ``SCORES_MAX`` scores at once."""

    def size(block: _Block) -> tuple[int, ...]:
        return tuple((length - 1).bit_length() for length in block.shape)

    for _, same in groupby(sorted(blocks, key=size), key=size):
        alike = list(same)
        widest = max(b.shape[0] for b in alike) * max(b.shape[1] for b in alike)
        count = max(1, SCORES_MAX // widest)
        yield from (alike[i : i + count] for i in range(0, len(alike), count))


def _call(blocks: Sequence[_Block], window: int | None, device: torch.device) -> BlockCall:
    num_queries = max(block.shape[0] for block in blocks)
    num_keys = max(block.shape[1] for block in blocks)
    q_at = torch.arange(num_queries)
    queries, keys, allowed = [], [], []
    for block in blocks:
        q_len, k_len = block.shape
        queries.append(block.queries.start + q_at.clamp(max=q_len - 1))
        keys.append(block.keys[torch.arange(num_keys).clamp(max=k_len - 1)])
        distance = (block.first + q_at)[:, None] - (block.keys_first + torch.arange(num_keys))
        seen = distance >= 0
        if window is not None:
            seen &= distance < window
        seen[:, k_len:] = False
        seen[q_len:] = True  # pads are dropped; a row without any key would be no number
        allowed.append(seen)
    lengths = torch.tensor([block.shape[0] for block in blocks])
    return BlockCall(
        queries=torch.cat(queries).to(device),
        keys=torch.cat(keys).to(device),
        allowed=torch.stack(allowed)[:, None].to(device),
        real=(q_at < lengths[:, None]).reshape(-1).nonzero()[:, 0].to(device),
    )


def _stretches(x_NHD: torch.Tensor, take: torch.Tensor, num_blocks: int) -> torch.Tensor:
    return x_NHD.index_select(0, take).unflatten(0, (num_blocks, -1)).transpose(1, 2)
