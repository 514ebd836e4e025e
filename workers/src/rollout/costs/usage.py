"""When what was in use: facts of ledgers as spans of whole milliseconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Span = tuple[int, int]
"""From (included) to (excluded), in milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """One worker on one place. ``place`` says ``machine``, or what a pod asks for: ``requests``, ``pods``, ``instanceType``, ``capacity``."""

    worker: str
    role: str
    span: Span
    place: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTotal:
    """What workers of one role on one kind of place used together on the day that begins at ``day_ms``."""

    role: str
    day_ms: int
    used_ms: int
    place: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUsage:
    """What a run used: ``stays`` as a ledger has it, ``days`` as a status sums it up. ``stays`` None: nobody noted it, and ``why`` says so.

    ``waited`` and ``lost`` are shares from 0 to 1: of the learner's time that it waited for samples, and of the time spent in
    attempts that came to nothing by no fault of the policy; None where nothing was measured.
    """

    run: str
    uid: str
    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    stays: Sequence[Lifetime] | None = ()
    days: Sequence[DayTotal] = ()
    why: str = ""
    samples: int = 0
    tokens: int = 0
    waited: float | None = None
    lost: float | None = None


DAY_MS = 86_400_000


def merge(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order: nothing in it is there twice."""
    merged: list[Span] = []
    for begin, end in sorted(one for one in spans if one[0] < one[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def cut(span: Span, points: Iterable[int]) -> Iterator[Span]:
    """The span in pieces that begin and end at ``points``; together they are the whole."""
    begin, end = span
    for point in sorted(one for one in points if span[0] < one < span[1]):
        yield begin, point
        begin = point
    if begin < end:
        yield begin, end


def month_of(at_ms: int) -> str:
    """The month of a moment, UTC: ``2026-11``."""
    return moment(at_ms).strftime("%Y-%m")


def months_in(span: Span) -> list[int]:
    """Where months begin inside a span, UTC."""
    starts: list[int] = []
    at = moment(span[0]).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while True:
        at = (at + timedelta(days=32)).replace(day=1)
        start = (at - EPOCH) // timedelta(milliseconds=1)
        if start >= span[1]:
            return starts
        starts.append(start)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(at_ms: int) -> datetime:
    """Milliseconds since 1970 as a time, wherever this machine stands. Raises OverflowError beyond the year 9999."""
    return EPOCH + timedelta(milliseconds=at_ms)
