"""The end of what a child process writes, kept in memory while all of it passes on to our own output."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import IO

TAIL_BYTES_MAX = 1 << 17
READ_BYTES = 1 << 14
DRAIN_SECONDS_MAX = 2.0
"""How long what a dead child's own children hold open is waited for."""

Piece = tuple[int, bytes]
"""Whole lines of one pipe, and how many pieces of all pipes were kept before."""


@dataclass(slots=True)
class _Kept:
    """The last pieces of one pipe, and their bytes."""

    pieces: deque[Piece] = field(default_factory=deque)
    size: int = 0


class OutputTail:
    """``follow`` pipes to our descriptors; ``text`` is the end of all, by lines, in the order in which the lines ended.

    A line counts once it is whole: what another pipe says stands beside it, never inside, and a word in it is masked as one.
    A pipe has its share whatever the others say: a traceback is not lost to the output that is read after it.
    """

    def __init__(self) -> None:
        self._pipes: list[_Kept] = []
        self._order = count()
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        self.num_bytes = 0

    def follow(self, pipe: IO[bytes], descriptor: int) -> None:
        """Pass a child's output on until it ends."""
        kept = _Kept()
        self._pipes.append(kept)
        reader = threading.Thread(
            target=self._pass_on, args=(pipe, descriptor, kept), daemon=True, name="output"
        )
        reader.start()
        self._readers.append(reader)

    def drain(self) -> None:
        """Wait, for a bounded time, until everything that was written has been read."""
        for reader in self._readers:
            reader.join(DRAIN_SECONDS_MAX)

    def text(self, bytes_max: int = TAIL_BYTES_MAX) -> str:
        """The last bytes as text; a pipe of which anything is left out begins with a line."""
        with self._lock:
            pipes, sizes = (
                [list(one.pieces) for one in self._pipes],
                [one.size for one in self._pipes],
            )
        shares = _share(bytes_max, sizes)
        ends = (_end(pieces, share) for pieces, share in zip(pipes, shares, strict=True))
        merged = sorted(piece for end in ends for piece in end)
        return b"".join(data for _, data in merged).decode(errors="replace")

    def _pass_on(self, pipe: IO[bytes], descriptor: int, kept: _Kept) -> None:
        open_line = b""
        while data := os.read(pipe.fileno(), READ_BYTES):
            open_line += data
            if b"\n" in data or len(open_line) > TAIL_BYTES_MAX:
                lines, newline, rest = open_line.rpartition(b"\n")
                open_line = rest if newline else b""
                self._keep(kept, lines + newline or rest)
            with suppress(
                OSError
            ):  # nobody reads our output any more: the child must not block on that
                _write(descriptor, data)
        self._keep(kept, open_line)

    def _keep(self, kept: _Kept, data: bytes) -> None:
        with self._lock:
            kept.pieces.append((next(self._order), data))
            kept.size += len(data)
            while kept.size - len(kept.pieces[0][1]) > TAIL_BYTES_MAX:
                kept.size -= len(kept.pieces.popleft()[1])
            self.num_bytes += len(data)


def _share(bytes_max: int, sizes: Sequence[int]) -> list[int]:
    """What each may have: an equal part, and what those that need less have left."""
    shares = [0] * len(sizes)
    left = bytes_max
    for rank, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[index] = min(sizes[index], left // (len(sizes) - rank))
        left -= shares[index]
    return shares


def _end(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """The last pieces within a size, the first of them cut where a line begins."""
    end: list[Piece] = []
    for order, data in reversed(pieces):
        if len(data) > size:
            cut = data[len(data) - size :].partition(b"\n")[2]
            end.append((order, cut))
            break
        end.append((order, data))
        size -= len(data)
    return end[::-1]


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
