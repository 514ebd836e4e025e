"""A folder that appears whole or not at all: made beside its place under a lock, on the disk before it has its name.

What a killed writer left is found by its name and made again. A folder that holds anything is never written into.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rollout.common.atomic_files import fsync_folder
from rollout.errors import NoSpace, PlaceUnreachable, SpecError

SPARE_BYTES = 16 << 20
"""Room for configuration and tokenizer beside the weights."""


def is_taken(target: Path) -> bool:
    """Whether something is there that must not be written over. Raises PlaceUnreachable."""
    try:
        return target.is_symlink() or (
            target.exists() and not (target.is_dir() and not any(target.iterdir()))
        )
    except OSError as error:
        raise _unreachable(target, error) from error


@contextmanager
def new_folder(target: Path, size_bytes: int) -> Iterator[Path]:
    """An empty folder that becomes ``target`` when the block ends well, and is gone when it does not.

    ``size_bytes`` are what will be written. Raises SpecError while another process makes it,
    PlaceUnreachable where nothing may be written, NoSpace for a full disk.
    """
    work = target.with_name(f".{target.name}.exporting")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _require_space(target, size_bytes)
        with _owned(work):
            try:
                yield work
                _publish(work, target)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
    except OSError as error:
        raise _unreachable(target, error) from error


@contextmanager
def _owned(work: Path) -> Iterator[None]:
    """The folder, empty, and this process's alone."""
    work.mkdir(exist_ok=True)
    handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _require_same(handle, work)
        _empty(work)
        yield
    except BlockingIOError:
        raise _in_use(work) from None
    finally:
        os.close(handle)


def _require_same(handle: int, work: Path) -> None:
    """What is locked must still be what has the name: another process may just have finished."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), work.stat()):
            return
    raise _in_use(work)


def _in_use(work: Path) -> SpecError:
    return SpecError(
        f"{work}: another process exports here now; wait for it, or name another folder"
    )


def _empty(work: Path) -> None:
    """Remove what a killed export left: plain files, nothing else is its own."""
    for path in work.iterdir():
        if path.is_symlink() or not path.is_file():
            raise SpecError(
                f"{path} is not what an export that was killed has left; move {work} away"
            )
        path.unlink()


def _require_space(target: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < size_bytes + SPARE_BYTES:
        raise NoSpace(
            f"{target}: the model has {size_bytes:,} bytes and the disk has {free:,} left; free space"
            " there, or name a folder on another disk"
        )


def _publish(work: Path, target: Path) -> None:
    for path in work.iterdir():
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    fsync_folder(work)
    try:
        work.rename(target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            raise SpecError(
                f"{target} was made by somebody else meanwhile; see what it is"
            ) from error
        raise
    fsync_folder(target.parent)


def _unreachable(target: Path, error: OSError) -> PlaceUnreachable | NoSpace:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return NoSpace(
            f"{target}: the disk is full and nothing is left there; free space, or name a folder on"
            " another disk, and export again"
        )
    return PlaceUnreachable(
        f"{target} cannot be written: {error}; name a folder that you may write to"
    )
