"""What ``ps`` shows of a forked process: the command line that would have started it.

Linux keeps a process's arguments where its stack began (proc(5), ``arg_start`` and ``arg_end``); a
longer title than the first command line had room for is cut. Anywhere else nothing is changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

ARG_START, ARG_END = 47, 48
"""Positions in ``/proc/self/stat``, the first field being 0."""
FIELDS_BEFORE = 2
"""A process's id and its name, which may hold blanks, come before the fields that can be split."""


def set_title(words: Sequence[str]) -> None:
    """Show these words as our command line."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return
    fields = stat.read_text().rpartition(")")[2].split()
    start, end = (int(fields[index - FIELDS_BEFORE]) for index in (ARG_START, ARG_END))
    room = end - start
    title = b"\0".join(word.encode() for word in words)[: room - 1]
    ctypes.memmove(start, title.ljust(room, b"\0"), room)
