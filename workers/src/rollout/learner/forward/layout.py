"""Which stretches of a packed row attend to which: pure planning, no tensors of the model.

Every segment (a sequence, a prompt or a completion) attends causally to itself; the completions of a
group also attend to the whole of their prompt. The plan groups that work into few attention calls:
equal neighbours become one view (``SegmentRun``), short segments one padded batch (``RowBucket``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

SHORT_LENGTH_MAX = 48
"""Segments up to this long are padded together; a longer one costs more to copy than to call."""

SMALL_CROSS_MAX = 4096
"""Groups whose (completion tokens x prompt tokens) is at most this are padded together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSegment:
    """Tokens ``[start, end)`` of the row; ``prompt`` is the index of the segment it continues."""

    start: int
    end: int
    prompt: int | None

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRun:
    """``count`` neighbouring segments of ``length`` tokens each, from ``start``: a view, no copy."""

    start: int
    count: int
    length: int

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBucket:
    """``count`` stretches padded to ``length``.

    ``take`` [count * length] are row positions, pads repeat one; ``rows`` are the row positions of the
    real tokens and ``flat`` where each lies in the padded batch.
    """

    count: int
    length: int
    take: torch.Tensor
    rows: torch.Tensor
    flat: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Cross:
    """Completion tokens ``queries`` of one group attending to all of its prompt ``keys``."""

    queries: SegmentRun
    keys: SegmentRun


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossBucket:
    """Small groups at once; ``bias`` [count, 1, 1, keys.length] is -inf on padded keys, or None."""

    queries: RowBucket
    keys: RowBucket
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The whole plan. ``no_mask`` is an empty 4-D tensor: transformers takes it as a ready mask.

    ``longest`` is the number of tokens of the longest sequence, prompt included.
    """

    segments: tuple[RowSegment, ...]
    longest: int

    runs: tuple[SegmentRun, ...]
    buckets: tuple[RowBucket, ...]
    crosses: tuple[Cross, ...]
    cross_buckets: tuple[CrossBucket, ...]
    no_mask: torch.Tensor

    def to(self, device: torch.device | str) -> RowLayout:
        """The same plan with its index tensors on ``device``."""
        return RowLayout(
            segments=self.segments,
            longest=self.longest,
            runs=self.runs,
            buckets=tuple(_move(bucket, device) for bucket in self.buckets),
            crosses=self.crosses,
            cross_buckets=tuple(
                CrossBucket(
                    queries=_move(cross.queries, device),
                    keys=_move(cross.keys, device),
                    bias=None if cross.bias is None else cross.bias.to(device),
                )
                for cross in self.cross_buckets
            ),
            no_mask=self.no_mask.to(device),
        )


def plan_layout(segments: Sequence[RowSegment]) -> RowLayout:
    """The attention calls of a row. Segments are in row order and do not overlap."""
    long = [segment for segment in segments if segment.length > SHORT_LENGTH_MAX]
    short = [segment for segment in segments if segment.length <= SHORT_LENGTH_MAX]
    crosses = list(_crosses(segments))
    small = [c for c in crosses if c.queries.length * c.keys.length <= SMALL_CROSS_MAX]
    large = [c for c in crosses if c.queries.length * c.keys.length > SMALL_CROSS_MAX]
    return RowLayout(
        segments=tuple(segments),
        longest=max((_sequence_length(s, segments) for s in segments), default=0),
        runs=tuple(_runs(long)),
        buckets=tuple(
            _buckets([SegmentRun(start=s.start, count=1, length=s.length) for s in short])
        ),
        crosses=tuple(large),
        cross_buckets=(_cross_bucket(small),) if small else (),
        no_mask=torch.empty(1, 1, 0, 0),
    )


def _sequence_length(segment: RowSegment, segments: Sequence[RowSegment]) -> int:
    return segment.length + (0 if segment.prompt is None else segments[segment.prompt].length)


def _runs(segments: Sequence[RowSegment]) -> Iterator[SegmentRun]:
    start = count = length = 0
    for segment in segments:
        if count and segment.length == length and segment.start == start + count * length:
            count += 1
            continue
        if count:
            yield SegmentRun(start=start, count=count, length=length)
        start, count, length = segment.start, 1, segment.length
    if count:
        yield SegmentRun(start=start, count=count, length=length)


def _buckets(stretches: Sequence[SegmentRun]) -> Iterator[RowBucket]:
    """Lengths that share a power of two are padded together: at most twice the work."""
    ordered = sorted(stretches, key=lambda stretch: stretch.length)
    for _, same in groupby(ordered, key=lambda stretch: (stretch.length - 1).bit_length()):
        yield _bucket(list(same))


def _bucket(stretches: Sequence[SegmentRun]) -> RowBucket:
    starts = torch.tensor([stretch.start for stretch in stretches])
    lengths = torch.tensor([stretch.length for stretch in stretches])
    length = int(lengths.max())
    offsets = torch.arange(length)
    real = offsets < lengths[:, None]
    take = starts[:, None] + torch.where(real, offsets, 0)
    return RowBucket(
        count=len(stretches),
        length=length,
        take=take.reshape(-1),
        rows=take[real],
        flat=real.reshape(-1).nonzero()[:, 0],
    )


def _crosses(segments: Sequence[RowSegment]) -> Iterator[Cross]:
    """One per prompt: its completions lie side by side right behind it."""
    followers = [segment for segment in segments if segment.prompt is not None]
    for index, same in groupby(followers, key=lambda segment: segment.prompt):
        group = list(same)
        prompt = segments[index if index is not None else 0]
        yield Cross(
            queries=SegmentRun(
                start=group[0].start, count=1, length=group[-1].end - group[0].start
            ),
            keys=SegmentRun(start=prompt.start, count=1, length=prompt.length),
        )


def _cross_bucket(crosses: Sequence[Cross]) -> CrossBucket:
    queries = _bucket([cross.queries for cross in crosses])
    keys = _bucket([cross.keys for cross in crosses])
    lengths = torch.tensor([cross.keys.length for cross in crosses])
    padded = torch.arange(keys.length) >= lengths[:, None]
    bias = torch.zeros(padded.shape).masked_fill(padded, float("-inf"))[:, None, None, :]
    return CrossBucket(queries=queries, keys=keys, bias=bias if bool(padded.any()) else None)


def _move(bucket: RowBucket, device: torch.device | str) -> RowBucket:
    return RowBucket(
        count=bucket.count,
        length=bucket.length,
        take=bucket.take.to(device),
        rows=bucket.rows.to(device),
        flat=bucket.flat.to(device),
    )
