"""A folder as an object store: content-addressed files, each written whole or not at all.

An object is written to a temporary file, flushed to the disk, renamed, and its folder flushed, in
that order: what has a name is complete, after a power cut too. Bytes are verified when they are read.
Temporary files of writers that died are swept when the store is opened.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from blake3 import blake3

from rollout.common.atomic_files import fsync_folder, replacing
from rollout.errors import NoSpace, StoreError
from rollout.objects.bulk import hash_file, name_parts, write_parts
from rollout.objects.reading import ObjectFiles

CHUNK_BYTES = 1 << 20
STALE_TEMPORARY_SECONDS = 3600.0
"""Temporary files older than this belong to a writer that died."""
FOLDERS = tuple(f"{number:02x}" for number in range(256))
"""What names begin with."""


class FilesystemStore:
    """Objects under ``root/blake3/<2 hex>/<64 hex>``. Thread-safe; many processes may share a root."""

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        """``durable`` False leaves out the flushing: for copies of what lies elsewhere."""
        self._files = ObjectFiles(root)
        self._durable = durable
        self._staging = root / "staging"
        make_folder(self._files.root)
        make_folder(self._staging)
        self._known = self._durable_folders(root)
        self._sweep()

    def put(self, data: bytes) -> str:
        """Store bytes; returns their digest. Raises StoreError."""
        return self.put_parts((data,))

    def put_parts(self, parts: Sequence[bytes | memoryview]) -> str:
        """Store parts as one object, without joining them in memory. Raises StoreError."""
        return self.keep(name_parts(parts), parts)

    def keep(self, digest: str, parts: Sequence[bytes | memoryview]) -> str:
        """As ``put_parts``, for who has hashed the parts: they are not hashed again. Raises StoreError."""
        if not self.has(digest):
            with self._staged() as (file, path):
                write_parts(file, parts, durable=self._durable)
                self._publish(file, path, digest)
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file's bytes; returns their digest. The file stays. Raises StoreError."""
        with self._staged() as (file, staged):
            hasher = blake3()
            with path.open("rb") as source:
                while chunk := source.read(CHUNK_BYTES):
                    hasher.update(chunk)
                    file.write(chunk)
            digest = f"blake3:{hasher.hexdigest()}"
            if self.has(digest):
                staged.unlink()
            else:
                self._publish(file, staged, digest)
        return digest

    def path(self, digest: str) -> Path:
        """The object's file, verified. Raises StoreError when it is missing or damaged."""
        return self._files.path(digest)

    def locate(self, digest: str) -> Path:
        """Where the object lies, or would. Raises StoreError for what is no digest."""
        return self._files.locate(digest)

    def has(self, digest: str) -> bool:
        """Whether the object is there."""
        return self._files.has(digest)

    def size(self, digest: str) -> int:
        """Bytes of the object. Raises StoreError when it is missing."""
        try:
            return self._files.locate(digest).stat().st_size
        except OSError as error:
            fail_on_disk("find", self._files.locate(digest), error)

    def delete(self, digest: str) -> None:
        """Remove the object; a no-op when it is not there. Raises StoreError."""
        path = self._files.locate(digest)
        self._files.forget(digest)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            fail_on_disk("delete", path, error)

    def sizes(self) -> list[tuple[str, int]]:
        """Every object and its bytes, the oldest first. Raises StoreError."""
        found: list[tuple[int, str, int]] = []
        try:
            for path in self._files.root.glob("??/*"):
                with suppress(FileNotFoundError):  # another process dropped it
                    stat = path.stat()
                    found.append((stat.st_mtime_ns, f"blake3:{path.name}", stat.st_size))
        except OSError as error:
            fail_on_disk("list", self._files.root, error)
        return [(digest, size) for _, digest, size in sorted(found)]

    def names(self) -> list[str]:
        """Every object. Raises StoreError."""
        return [digest for digest, _ in self.sizes()]

    @contextmanager
    def receive(self, size_bytes: int) -> Iterator[Incoming]:
        """An object that arrives piece by piece; gone at the end unless it was committed.

        Its ``size_bytes`` are reserved on the disk first. Raises StoreError, NoSpace for a full disk.
        """
        with self._staged() as (file, path):
            if size_bytes:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            yield Incoming(file, path, self._publish)
            path.unlink(missing_ok=True)

    @contextmanager
    def _staged(self) -> Iterator[tuple[BinaryIO, Path]]:
        staged = self._staging / f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
        try:
            with staged.open("xb") as file:
                yield file, staged
        except OSError as error:
            discard(staged)
            fail_on_disk("write", staged, error)
        except BaseException:
            discard(staged)
            raise

    def _publish(self, file: BinaryIO, staged: Path, digest: str) -> None:
        target = self._files.locate(digest)
        file.flush()
        self._flush(file)
        Path(staged).chmod(0o444)
        if target.parent.name not in self._known or not target.parent.is_dir():
            self._make_folders(FOLDERS if self._durable else (target.parent.name,))
        staged.replace(target)
        self._flush(target.parent)
        self._files.remember(digest)

    def _make_folders(self, names: Sequence[str]) -> None:
        """All at once where they are flushed: else most of a run's first hundred steps would wait for a flush of their own."""
        there = {entry.name for entry in os.scandir(self._files.root)}
        for name in names:
            if name not in there:
                (self._files.root / name).mkdir(exist_ok=True)
        self._flush(self._files.root)
        self._known.update(names)

    def _flush(self, what: BinaryIO | Path) -> None:
        if not self._durable:
            return
        if isinstance(what, Path):
            fsync_folder(what)
        else:
            os.fsync(what.fileno())

    def _durable_folders(self, root: Path) -> set[str]:
        """Folders of objects, whose names are durable: who made them may have died before it had flushed them."""
        try:
            found = {path.name for path in self._files.root.iterdir()}
            for folder in (self._files.root, root, root.absolute().parent):
                self._flush(folder)
        except OSError as error:
            fail_on_disk("flush", root, error)
        return found

    def _sweep(self) -> None:
        limit = time.time() - STALE_TEMPORARY_SECONDS
        for path in self._staging.iterdir():
            try:
                if path.stat().st_mtime < limit:
                    path.unlink()
            except FileNotFoundError:
                continue  # another process swept it


class Incoming:
    """An object on its way into a folder: written in any order, by any thread, then named."""

    def __init__(
        self, file: BinaryIO, path: Path, publish: Callable[[BinaryIO, Path, str], None]
    ) -> None:
        self._file = file
        self._path = path
        self._publish = publish

    def write_at(self, position: int, chunk: bytes | memoryview) -> None:
        """Put a piece in its place. Raises StoreError."""
        left = memoryview(chunk)
        try:
            while left:
                written = os.pwrite(self._file.fileno(), left, position)
                left, position = left[written:], position + written
        except OSError as error:
            fail_on_disk("write", self._path, error)

    def commit(self, digest: str) -> str:
        """Hash what has come; give it its name if that is ``digest``. Returns the hash as a digest."""
        actual = hash_file(self._path)
        if actual == digest:
            self._publish(self._file, self._path, digest)
        return actual


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file by new content, durably: readers see the old bytes or the new. Raises StoreError."""
    with _replacing(path, durable=True) as file:
        file.write(data)


def copy_atomically(source: Path, target: Path, *, durable: bool = True) -> None:
    """Copy a file so that ``target`` appears whole. Raises StoreError."""
    with _replacing(target, durable=durable) as file, source.open("rb") as origin:
        shutil.copyfileobj(origin, file, CHUNK_BYTES)


@contextmanager
def _replacing(path: Path, *, durable: bool) -> Iterator[BinaryIO]:
    try:
        with replacing(path, durable=durable) as file:
            yield file
    except OSError as error:
        fail_on_disk("write", path, error)


def discard(staged: Path) -> None:
    """Remove what was not finished; what a failing disk keeps of it has no name that anybody reads."""
    with suppress(OSError):
        staged.unlink()


def make_folder(folder: Path) -> None:
    """A folder and those above it, where they are missing, durably. Raises StoreError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
        fsync_folder(folder.parent)
    except OSError as error:
        fail_on_disk("make", folder, error)


def fail_on_disk(verb: str, path: Path, error: OSError) -> NoReturn:
    """Raise NoSpace or StoreError: what could not be done to which file, and what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        raise NoSpace(
            f"no space left to {verb} {path}: nothing committed is lost; free space on that file"
            " system (old runs' objects/ and snapshots/, caches), then resume the run"
        ) from error
    raise StoreError(f"cannot {verb} {path}: {error}") from error
