"""What the coordinator asks a process that runs the author's code, and what it believes of the answers.

Rows come as data: their number, depth and finiteness are checked here, and their bytes where a frame is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from rollout import errors
from rollout.errors import DataError, SpecError

ANSWER_BYTES_MAX = 256 << 20
ROWS_AT_ONCE_MAX = 256
DEPTH_MAX = 32
LENGTH_MAX = 1 << 53
MESSAGE_CHARACTERS_MAX = 4000
_BELIEVED = (SpecError, DataError, errors.HubUnreachable, errors.StoreError)
"""Errors that an answer may name; any other would mean something about the coordinator itself."""


class Look(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """Look at model and data: a ``ResolveRequest`` as JSON. ``models_only``: a ``ModelFacts`` is asked for, no Resolution."""

    request: bytes
    models_only: bool = False


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Open every source of a run: its ``WorkerConfig`` as JSON."""

    config: bytes


class Read(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """Rows of one source."""

    role: str
    positions: list[int]


Question = Look | Open | Read


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One source: ``train``, ``held-out``, or ``suite/<name>/<split>``. ``window``: a stream's."""

    role: str
    digest: str
    length: int
    window: int | None = None


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The failure, by class of ``rollout.errors``, or what was asked for."""

    error: str = ""
    message: str = ""
    found: bytes = b""
    sources: list[SourceFacts] = []
    rows: list[dict[str, Any]] = []


def fail(error: Exception) -> RowAnswer:
    """An answer that says what was raised."""
    return RowAnswer(error=type(error).__name__, message=str(error)[:MESSAGE_CHARACTERS_MAX])


def raise_failure(answer: RowAnswer, field: str) -> None:
    """Raise what the answer says; nothing where it is none. Raises SpecError, DataError, HubUnreachable."""
    if not answer.error:
        return
    kind = getattr(errors, answer.error, None)
    message = answer.message[:MESSAGE_CHARACTERS_MAX]
    if isinstance(kind, type) and issubclass(kind, _BELIEVED):
        raise kind(message)
    raise DataError(f"{field}: {message}")


def check_facts(facts: SourceFacts, field: str) -> SourceFacts:
    """Raise DataError for a source that no run can have."""
    if not 1 <= len(facts.digest) <= 1024 or not facts.digest.isprintable():
        raise DataError(f"{field}: digest of {facts.role}: expected a line of text")
    if not 0 <= facts.length <= LENGTH_MAX:
        raise DataError(f"{field}: length of {facts.role}: {facts.length} is no number of rows")
    if facts.window is not None and not 1 <= facts.window <= LENGTH_MAX:
        raise DataError(f"{field}: window of {facts.role}: {facts.window} is no number of rows")
    return facts


def check_rows(
    rows: Sequence[dict[str, Any]], positions: Sequence[int], field: str
) -> Sequence[dict[str, Any]]:
    """Raise DataError unless there is one row a position, in values that every process can read."""
    if len(rows) != len(positions):
        raise DataError(f"{field}: asked for {len(positions)} rows, got {len(rows)}")
    for position, row in zip(positions, rows, strict=True):
        problem = find_unusable(row)
        if problem:
            raise DataError(f"{field}: row {position}: {problem}")
    return rows


def find_unusable(row: dict[str, Any]) -> str:
    """What of a row is no JSON value, or nested too deeply; empty where it is sound."""
    ahead: list[tuple[str, Any, int]] = [("", row, 0)]
    while ahead:
        place, value, depth = ahead.pop()
        problem = _judge(value, depth)
        if problem:
            return f"{place[1:81] or 'the row'}: {problem}"
        if isinstance(value, dict):
            ahead += [(f"{place}.{name}", item, depth + 1) for name, item in value.items()]
        elif isinstance(value, list):
            ahead += [(f"{place}.{index}", item, depth + 1) for index, item in enumerate(value)]
    return ""


def _judge(value: Any, depth: int) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number"
    if isinstance(value, dict | list) and depth >= DEPTH_MAX:
        return f"nested more than {DEPTH_MAX} deep"
    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
        return "a name that is no text"
    if not isinstance(value, str | int | float | dict | list | None):
        return f"{type(value).__name__} is no JSON value"
    return ""
