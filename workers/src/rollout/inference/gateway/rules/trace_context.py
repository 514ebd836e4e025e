"""The ``traceparent`` of W3C's Trace Context, level 2: whose trace a request belongs to. Pure: text in, data out.

``tracestate`` is not read: nothing here needs it, and it is a client's text of any form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_HEADER_CHARACTERS = 55
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_SAMPLED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceParent:
    """A span by its ids in lower-case hex; ``sampled``: its owner records it."""

    trace_id: str
    span_id: str
    sampled: bool

    def render(self) -> str:
        """As a header."""
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.sampled else 0:02x}"

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """Read a client's header; None for one that is missing or broken, which is then no trace's."""
        head, rest = header[:_HEADER_CHARACTERS], header[_HEADER_CHARACTERS:]
        found = _HEADER.fullmatch(head)
        if found is None or found[1] == "ff" or not _may_follow(found[1], rest):
            return None
        if found[2] == _NO_TRACE or found[3] == _NO_SPAN:
            return None
        return cls(trace_id=found[2], span_id=found[3], sampled=bool(int(found[4], 16) & _SAMPLED))


def _may_follow(version: str, rest: str) -> bool:
    """Version 00 has four fields; later ones may have more."""
    return not rest or (version != "00" and rest.startswith("-"))
