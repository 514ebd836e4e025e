"""A record as a line of JSON. One that is no JSON (bytes, a number that is not finite) is a line that whoever reads lines refuses by its number.

Dates are written as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

REASON_CHARACTERS_MAX = 200


def as_line(read: Callable[[], Mapping[str, Any]]) -> bytes:
    """The record that ``read`` gives; where it or its JSON fails by a value, the reason as a text."""
    try:
        text = json.dumps(read(), default=plain, allow_nan=False, ensure_ascii=False)
        return text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        # UnicodeDecodeError and the encoder's own are ValueErrors: the row is refused, with what is wrong in it.
        said = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
        return json.dumps(said).encode() + b"\n"


def plain(value: Any) -> Any:
    """What JSON has no form for, as text. Raises TypeError."""
    if isinstance(value, date | datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} values are not supported; drop that column")
