"""A file of what a reference said: one number per answer, found again by the digest of its tokens.

Records of fixed size are appended under a lock and carry a checksum: a damaged or cut record is as if it
had never been written, and any number of runs and ranks share one file. Losing it costs time only.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

BODY = struct.Struct("<16sd")
CHECK = struct.Struct("<I")
RECORD_BYTES = BODY.size + CHECK.size
FILE_BYTES_MAX = 64 * 2**20
"""One file: 2.4 million answers of one model, held in memory too. What comes later is scored each time."""
FOLDER_BYTES_MAX = 2**30
"""All files: the least recently used ones go when another is opened."""


class ReferenceStore:
    """The numbers in one file, and those that others append to it. Never raises for what the disk does.

    Once the file is full, or cannot be written, nothing is kept any more.
    """

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._known: dict[bytes, float] = {}
        self._offset = 0
        self._full = False
        self.refresh()

    def get(self, key: bytes) -> float | None:
        """The number of a 16-byte key, None where there is none."""
        return self._known.get(key)

    def refresh(self) -> None:
        """Take in what has been appended since."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(max(0, self._bytes_max - self._offset))
        except OSError:
            return
        usable = len(data) - len(data) % RECORD_BYTES
        self._known.update(_records(data[:usable]))
        self._offset += usable

    def add(self, found: Mapping[bytes, float]) -> None:
        """Keep numbers, those that are finite."""
        kept = {key: value for key, value in found.items() if math.isfinite(value)}
        if not kept or self._full:
            return
        self._known.update(kept)
        try:
            self._append(b"".join(_record(key, value) for key, value in kept.items()))
        except OSError as error:
            self._full = True
            log.warning("reference cache not written path=%s error=%s", self._path, error)

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            size -= size % RECORD_BYTES  # what a process that died left of a record
            if size + len(data) > self._bytes_max:
                self._full = True
                log.warning("reference cache full path=%s bytes=%d", self._path, size)
                return
            os.ftruncate(descriptor, size)
            os.pwrite(descriptor, data, size)
        finally:
            os.close(descriptor)


def open_reference_store(
    folder: Path, name: str, *, folder_bytes_max: int = FOLDER_BYTES_MAX
) -> ReferenceStore:
    """The store ``<folder>/<name>.bin``, now the most recently used; makes room among the others."""
    path = folder / f"{name}.bin"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        _make_room(folder, path, folder_bytes_max)
    except OSError as error:
        log.warning("reference cache not usable folder=%s error=%s", folder, error)
    return ReferenceStore(path)


def _make_room(folder: Path, kept: Path, bytes_max: int) -> None:
    others = sorted(
        (path for path in folder.glob("*.bin") if path != kept), key=lambda p: p.stat().st_mtime
    )
    sizes = {path: path.stat().st_size for path in others}
    total = kept.stat().st_size + sum(sizes.values())
    for path in others:
        if total <= bytes_max:
            return
        path.unlink(missing_ok=True)
        total -= sizes[path]


def _record(key: bytes, value: float) -> bytes:
    body = BODY.pack(key, value)
    return body + CHECK.pack(zlib.crc32(body))


def _records(data: bytes) -> Iterator[tuple[bytes, float]]:
    for start in range(0, len(data), RECORD_BYTES):
        body = data[start : start + BODY.size]
        if CHECK.unpack_from(data, start + BODY.size)[0] == zlib.crc32(body):
            key, value = BODY.unpack(body)
            if math.isfinite(value):
                yield key, value
