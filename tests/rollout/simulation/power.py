"""What a power cut leaves of a folder: files that were flushed, under names that were flushed, and nothing else.

A ``Disk`` hears of every ``os.fsync`` and forgets, at a cut, all that none of them has made durable: the worst that a
file system may do. A kill loses no file; this does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from blake3 import blake3

from rollout.errors import StoreError
from rollout.objects.filesystem import FilesystemStore


class Disk:
    """One folder; what lies there at the beginning is durable. ``spared`` names of its own are not touched."""

    def __init__(self, root: Path, spared: str) -> None:
        self._root, self._spared = root, spared
        self._names: dict[int, dict[str, int]] = {}
        """Of a folder, by its inode: the names in it that a flush of it has seen, and whose they are."""
        self._written: set[tuple[int, int]] = set()
        """Inode and time of the last change of every file that was flushed."""
        for folder, _, files in os.walk(root):
            self._see(folder)
            self._written |= {_state(Path(folder) / name) for name in files}

    def fsync(self, descriptor: int) -> None:
        """In place of ``os.fsync``."""
        if os.path.isdir(f"/dev/fd/{descriptor}"):  # noqa: PTH112 - of a descriptor
            self._see(descriptor)
        else:
            found = os.fstat(descriptor)
            self._written.add((found.st_ino, found.st_mtime_ns))

    def cut(self) -> int:
        """The power goes; how many files went with it."""
        return self._forget(self._root)

    def _see(self, folder: int | str) -> None:
        with os.scandir(folder) as entries:
            self._names[os.stat(folder).st_ino] = {one.name: one.inode() for one in entries}  # noqa: PTH116

    def _forget(self, folder: Path) -> int:
        known, lost = self._names.get(folder.stat().st_ino, {}), 0
        for path in list(folder.iterdir()):
            if path.name.startswith(self._spared):
                continue
            if known.get(path.name) != path.stat().st_ino:
                lost += 1
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.is_dir():
                lost += self._forget(path)
            elif _state(path) not in self._written:
                lost += 1
                path.chmod(0o644)
                path.write_bytes(b"")
        return lost


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


class Store:
    """The real store of objects in a folder; in the order in which they came, whatever the clock says."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, None] = {}
        self.num_rebuilt = 0
        self.open()

    def open(self) -> None:
        """As after a start of the machine: nothing of it is remembered."""
        self._files = FilesystemStore(self._root)
        self._names = {name: None for name in self._names if self._files.has(name)}

    def put(self, data: bytes) -> str:
        digest = self._files.put(data)
        self._names[digest] = None
        return digest

    def read(self, digest: str) -> bytes:
        """Raises StoreError for what is missing or not what its name says."""
        data = self._files.path(digest).read_bytes()
        if digest != f"blake3:{blake3(data).hexdigest()}":
            raise StoreError(f"{digest} is damaged")
        return data

    def path(self, digest: str) -> Path:
        self.read(digest)
        return Path(digest)

    def changes(self, since: str, name: str) -> None:
        """Nobody knows what differs."""

    def forget(self) -> None:
        """Nothing is kept of what was read."""

    def has(self, digest: str) -> bool:
        return self._files.has(digest)

    def delete(self, digest: str) -> None:
        self._names.pop(digest, None)
        self._files.delete(digest)

    def names(self) -> list[str]:
        return list(self._names)
