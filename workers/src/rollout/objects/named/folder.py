"""Objects by name in a folder: plain files. A lock of the folder makes condition and change one step.

A file is written beside its place, flushed, renamed, and its folder flushed: a reader sees the old bytes or the
new ones. The tag is the file's time of change, set by us and never set twice, with its inode.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout.common.atomic_files import fsync_folder, replacing
from rollout.objects.filesystem import fail_on_disk, make_folder
from rollout.objects.named.contract import (
    NamedEntry,
    NamedObject,
    check_data,
    check_name,
    too_large,
    was_first,
)
from rollout.objects.named.probing import require_conditions
from rollout.objects.retry import Operation, Patience, Transient, persist

LOCK, STAGED = ".lock", ".staged"
LOCKED = Patience(tries_max=600, pause_first_seconds=0.001, pause_max_seconds=0.1)
"""About a minute: a writer holds the lock for two flushes of the disk."""


class FolderObjects:
    """Files below ``root``, which is made. Thread-safe; processes of one machine may share it."""

    def __init__(self, root: Path, patience: Patience = LOCKED) -> None:
        self._root = root
        self._patience = patience

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._root)

    def create(self, name: str, data: bytes) -> str:
        """Store an object where none has the name; its tag. Raises PreconditionFailed where one has."""
        return self._write(name, data, None)

    def replace(self, name: str, data: bytes, tag: str) -> str:
        """Store other bytes while the object is the one of ``tag``; the new tag. Raises PreconditionFailed."""
        return self._write(name, data, tag)

    def get(self, name: str, size_max: int) -> NamedObject | None:
        """The object; None where there is none. Raises StoreError for more than ``size_max`` bytes, unread."""
        path = self._root / check_name(name)
        with _translated("read", path):
            try:
                with path.open("rb") as file:
                    found = os.fstat(file.fileno())
                    if found.st_size > size_max:
                        raise too_large(self.place, name, found.st_size, size_max)
                    return NamedObject(data=file.read(size_max), tag=_tag(found))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def entries(self, prefix: str = "") -> Iterator[NamedEntry]:
        """Those whose names begin with ``prefix``, in the order of their names."""
        with _translated("list", self._root):
            names = sorted(self._names(prefix))
        for name in names:
            with _translated("find", self._root / name):
                try:
                    found = (self._root / name).stat()
                except FileNotFoundError:
                    continue  # deleted meanwhile
            yield NamedEntry(
                name=name,
                tag=_tag(found),
                size_bytes=found.st_size,
                modified_seconds=found.st_mtime,
            )

    def delete(self, name: str, tag: str) -> None:
        """Remove the object of ``tag``; nothing where there is none. Raises PreconditionFailed for another one."""
        path = self._root / check_name(name)
        with self._locked(), _translated("delete", path):
            there = _look(path)
            if there is None:
                return
            self._meet(name, tag, there)
            path.unlink()
            fsync_folder(path.parent)

    def require(self) -> None:
        """Raise PlaceUnreachable where nothing can be written now."""
        require_conditions(self)

    def _names(self, prefix: str) -> Iterator[str]:
        begin = self._root / prefix.rpartition("/")[0]
        for folder, folders, files in os.walk(begin):
            folders[:] = [one for one in folders if not one.startswith(".")]
            for file in files:
                name = (Path(folder) / file).relative_to(self._root).as_posix()
                if not file.startswith(".") and name.startswith(prefix):
                    yield name

    def _write(self, name: str, data: bytes, tag: str | None) -> str:
        path = self._root / check_name(name)
        check_data(name, data)
        with self._locked(), _translated("write", path):
            there = _look(path)
            self._meet(name, tag, there)
            make_folder(path.parent)
            with replacing(path, durable=True, staged=self._root / STAGED) as file:
                file.write(data)
                file.flush()
                _set_time(file.fileno(), there)
                written = os.fstat(file.fileno())
            return _tag(written)

    def _meet(self, name: str, tag: str | None, there: os.stat_result | None) -> None:
        found = None if there is None else _tag(there)
        if found != tag:
            raise was_first(self.place, name, tag)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folder(self._root)
        with _translated("lock", self._root):
            file = (self._root / LOCK).open("ab")
        with file:
            operation = Operation(verb="lock", digest=LOCK, place=self.place)
            persist(self._patience, operation, lambda: _lock(file.fileno()))
            yield


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _tag(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns:x}-{found.st_ino:x}"


def _set_time(handle: int, before: os.stat_result | None) -> None:
    """A time that the object has not had: the clock may stand still, or go back."""
    least = 0 if before is None else before.st_mtime_ns + 1
    now = max(time.time_ns(), least)
    os.utime(handle, ns=(now, now))


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Transient("another writer holds it") from None


@contextmanager
def _translated(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fail_on_disk(verb, path, error)
