"""Events of a watch, read only as far as they are news.

Most events tell of a version that the answer to our own write has shown already. The API server writes the
metadata of an object first, in one order; an event that begins in any other way is read whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

IsEcho = Callable[[str, int], bool]
"""Whether this version of the object with this UID is known from the answer to a write."""

_HEAD = re.compile(
    rb'\{"type":"(?:ADDED|MODIFIED)","object":\{"kind":"\w+","apiVersion":"[\w./-]+",'
    rb'"metadata":\{"name":"[\w.:-]+","namespace":"[\w-]+",'
    rb'"uid":"([\w-]+)","resourceVersion":"(\d+)",'
)


def nothing_is_echo(_uid: str, _version: int) -> bool:
    """For a watch of what nobody here writes."""
    return False


def read_event(line: bytes, is_echo: IsEcho) -> dict[str, Any]:
    """An event; an echo becomes a bookmark of its version. Raises ValueError for what is no JSON."""
    head = _HEAD.match(line)
    if head is not None and is_echo(head[1].decode(), int(head[2])):
        return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": head[2].decode()}}}
    return json.loads(line)
