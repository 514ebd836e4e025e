"""Text of others made fit to be printed: control characters are shown, never obeyed.

What a model, a user's code or a server wrote may hold sequences that move a terminal's cursor, set its title, write
to its clipboard, or turn the direction of a line. Whatever a person sees of it goes through here.
"""

from __future__ import annotations

import logging
import re

_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""C0 without tab and newline, DEL, C1, marks of direction, other line ends, halves of characters."""


def visible(text: str) -> str:
    r"""The text with each control character as its escape (``\x1b``); tabs and newlines stay."""
    return _HIDDEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class VisibleFormatter(logging.Formatter):
    """A record as text of which no line but its first looks like the beginning of a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record; further lines are indented."""
        return visible(super().format(record)).replace("\n", "\n  ")
