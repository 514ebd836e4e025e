"""Reads the cells of a ledger that hold documents. Whoever can write the file can write anything there.

Refuses what is no document with the cell's name, instead of failing wherever it is used.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.errors import LedgerBroken

T = TypeVar("T")


def read_document(text: Any, cell: str) -> dict[str, Any]:
    """A JSON object. Raises LedgerBroken for anything else in ``cell``."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise _broken(cell, error) from error
    if not isinstance(found, dict):
        raise _broken(cell, f"expected a JSON object, got {type(found).__name__}")
    return found


def read_optional(text: Any, cell: str) -> dict[str, Any] | None:
    """As ``read_document``; None where the cell is empty."""
    return None if text is None else read_document(text, cell)


def read_json(text: Any, kind: type[T], cell: str) -> T:
    """JSON of that type. Raises LedgerBroken for anything else in ``cell``."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (TypeError, *UNREADABLE) as error:
        raise _broken(cell, error) from error


def read_msgpack(content: Any, cell: str) -> dict[str, Any]:
    """A msgpack map with names. Raises LedgerBroken for anything else in ``cell``."""
    try:
        return msgspec.msgpack.decode(content, type=dict[str, Any])
    except (TypeError, ValueError, *UNREADABLE) as error:
        raise _broken(cell, error) from error


def _broken(cell: str, reason: object) -> LedgerBroken:
    return LedgerBroken(
        f"the ledger holds no such document in {cell}: {reason}; restore it from a copy, or start a new"
        " run; snapshots/ and objects/ of this run stay usable"
    )
