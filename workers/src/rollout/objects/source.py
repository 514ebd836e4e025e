"""Bytes to be uploaded, readable from any position and again: parts in memory, or a file."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Protocol, cast


class Source(Protocol):
    """An object's bytes. ``open`` may be called by many threads; each reader is one thread's."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        ...

    def open(self) -> BinaryIO:
        """A seekable reader at the start."""
        ...


class FileSource:
    """A file that does not change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size_bytes = path.stat().st_size

    def open(self) -> BinaryIO:
        """The file."""
        return self._path.open("rb")


class PartsSource:
    """Parts, one after the other, never joined."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._parts = [memoryview(part).cast("B") for part in parts if len(part)]
        self._ends = list(accumulate(len(part) for part in self._parts))
        self.size_bytes = self._ends[-1] if self._ends else 0

    def open(self) -> BinaryIO:
        """A reader over the parts' own memory."""
        return cast("BinaryIO", io.BufferedReader(_PartsReader(self._parts, self._ends), 1 << 20))


class _PartsReader(io.RawIOBase):
    def __init__(self, parts: Sequence[memoryview], ends: Sequence[int]) -> None:
        self._parts, self._ends, self._position = parts, ends, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        size = self._ends[-1] if self._ends else 0
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # pyrefly: ignore - the base class names it otherwise
        index = bisect_right(self._ends, self._position)
        if index == len(self._parts):
            return 0
        part = self._parts[index]
        start = self._position - (self._ends[index] - len(part))
        piece = part[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)
