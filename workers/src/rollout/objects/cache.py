"""A folder of verified copies with a size limit, in front of a place that is far away.

Nothing in it is the only copy of anything: it may be deleted at any time, and it is not flushed to the
disk. The oldest objects go first; the one that was handed out last stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rollout.errors import NoSpace, StoreError
from rollout.objects.filesystem import FilesystemStore, Incoming

log = logging.getLogger(__name__)

CACHE_BYTES_MAX = 20 << 30
"""Size of the folder when nothing else is said."""


class Cache:
    """Copies of objects under ``root``; processes may share it. ``size_bytes_max`` bounds it."""

    def __init__(self, root: Path, size_bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._folder = FilesystemStore(root, durable=False)
        self._root = root
        self._size_bytes_max = size_bytes_max
        self._last = ""

    def find(self, digest: str) -> Path | None:
        """The verified copy; None when there is none, or a damaged one, which is dropped."""
        if not self._folder.has(digest):
            return None
        try:
            return self.path(digest)
        except StoreError as error:
            log.warning("cached copy dropped object=%s reason=%s", digest, error)
            self.drop(digest)
            return None

    def path(self, digest: str) -> Path:
        """The verified copy. Raises StoreError when it is missing or damaged."""
        path = self._folder.path(digest)
        self._last = digest
        return path

    def drop(self, digest: str) -> None:
        """Forget a copy. Raises StoreError."""
        self._folder.delete(digest)

    def offer(self, digest: str, parts: Sequence[bytes | memoryview]) -> None:
        """Keep a copy where there is room; the place has the object anyway."""
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        if size_bytes > self._size_bytes_max:
            return
        try:
            self._make_room(size_bytes)
            self._last = self._folder.keep(digest, parts)
        except StoreError as error:
            log.warning("no copy kept reason=%s", error)

    def copy(self, path: Path) -> tuple[str, Path]:
        """Name a file's bytes and keep a copy of them. Raises StoreError."""
        self._require_room(str(path), path.stat().st_size)
        digest = self._folder.put_file(path)
        return digest, self.path(digest)

    @contextmanager
    def receive(self, digest: str, size_bytes: int) -> Iterator[Incoming]:
        """Room for an object that arrives. Raises StoreError when there is none, after making some."""
        self._require_room(f"object {digest}", size_bytes)
        try:
            with self._folder.receive(size_bytes) as incoming:
                yield incoming
        except NoSpace as error:
            raise NoSpace(
                f"object {digest} of {size_bytes} bytes does not fit into the cache {self._root}:"
                f" {error}"
            ) from error

    def _require_room(self, what: str, size_bytes: int) -> None:
        if size_bytes > self._size_bytes_max:
            raise StoreError(
                f"{what} has {size_bytes} bytes, the cache {self._root} may hold"
                f" {self._size_bytes_max}: raise spec.storage.cacheSize"
            )
        self._make_room(size_bytes)

    def _make_room(self, size_bytes: int) -> None:
        found = self._folder.sizes()
        total = sum(size for _, size in found)
        for digest, size in found:
            if total + size_bytes <= self._size_bytes_max:
                return
            if digest != self._last:
                self.drop(digest)
                total -= size
