"""A mirror in a folder: its pages go to the disk as the kernel sees fit, and may be read from there again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from rollout.errors import StoreError
from rollout.objects.filesystem import copy_atomically
from rollout.weights.changes import Bits
from rollout.weights.raw import open_raw


class DiskFile:
    """A copy of ``source`` at ``path``, under a new inode: who has an older one open keeps that. Raises StoreError."""

    def __init__(self, source: Path, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {path.parent}: {error}") from error
        copy_atomically(source, path, durable=False)
        self.path = path

    def tensors(self) -> AbstractContextManager[dict[str, Bits]]:
        """See the contract."""
        return open_raw(self.path, writable=True)

    def close(self) -> None:
        """The file stays until another takes its name, or its folder goes."""
