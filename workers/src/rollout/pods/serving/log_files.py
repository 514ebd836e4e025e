"""Passes the log files of a pod's children on to the pod's own output, and keeps them small."""

from __future__ import annotations

import os
from pathlib import Path

KEPT_BYTES_MAX = 4 << 20
READ_BYTES_MAX = 1 << 20
"""Of one file at one look."""


class LogFiles:
    """The ``*.log`` files of a folder. Writers append, so that a file that was cut to nothing goes on from its beginning."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._offsets: dict[Path, int] = {}

    def pass_on(self) -> None:
        """Write out what has come since the last look."""
        for path in sorted(self._folder.glob("*.log")):
            self._pass_on(path)

    def _pass_on(self, path: Path) -> None:
        offset = self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            while data := file.read(READ_BYTES_MAX):
                offset += len(data)
                _write(self._descriptor, data)
        if offset > KEPT_BYTES_MAX:
            os.truncate(path, 0)
            offset = 0
        self._offsets[path] = offset


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
