"""The end of what a child process writes, kept in memory while all of it passes on to our own output."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import IO

TAIL_BYTES_MAX = 1 << 17
READ_BYTES = 1 << 14
DRAIN_SECONDS_MAX = 2.0
"""How long what a dead child's own children hold open is waited for."""


class OutputTail:
    """``follow`` pipes to our descriptors; ``text`` is the end of both, by lines, in the order in which the lines ended.

    A line counts once it is whole: what another pipe says stands beside it, never inside, and a word in it is masked as one.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        self.num_bytes = 0

    def follow(self, pipe: IO[bytes], descriptor: int) -> None:
        """Pass a child's output on until it ends."""
        reader = threading.Thread(
            target=self._pass_on, args=(pipe, descriptor), daemon=True, name="output"
        )
        reader.start()
        self._readers.append(reader)

    def drain(self) -> None:
        """Wait, for a bounded time, until everything that was written has been read."""
        for reader in self._readers:
            reader.join(DRAIN_SECONDS_MAX)

    def text(self) -> str:
        """The last bytes as text, from the beginning of a line where anything was left out."""
        with self._lock:
            kept, whole = bytes(self._kept), self.num_bytes == len(self._kept)
        text = kept.decode(errors="replace")
        return text if whole else text.partition("\n")[2]

    def _pass_on(self, pipe: IO[bytes], descriptor: int) -> None:
        open_line = b""
        while data := os.read(pipe.fileno(), READ_BYTES):
            open_line += data
            if b"\n" in data or len(open_line) > TAIL_BYTES_MAX:
                lines, newline, rest = open_line.rpartition(b"\n")
                open_line = rest if newline else b""
                self._keep(lines + newline or rest)
            with suppress(
                OSError
            ):  # nobody reads our output any more: the child must not block on that
                _write(descriptor, data)
        self._keep(open_line)

    def _keep(self, data: bytes) -> None:
        with self._lock:
            self._kept += data
            del self._kept[:-TAIL_BYTES_MAX]
            self.num_bytes += len(data)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
