"""A mirror in this machine's memory, which no folder names and nobody else changes.

Linux keeps such a file (memfd) as long as a process has it open or mapped, and frees it with the last one, however that
ended. Only this user opens it, by the number that it has in this process. Once it is filled it is sealed: its length
stays, so that no reader meets an end that was not there, and no mapping or descriptor but the one of this process
writes to it. Its memory is taken when it is made, not when it is touched.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rollout.common.machine_memory import available_memory
from rollout.errors import NoSpace, StoreError
from rollout.objects.bulk import PIECE_BYTES
from rollout.weights.changes import Bits
from rollout.weights.mirrors.room import SHARE_MAX, has_room
from rollout.weights.raw import parse_raw

NAME = "rollout-weights"
"""In lists of what a process has open or mapped; it opens nothing."""
SEAL_FUTURE_WRITE = 0x10
"""Linux's F_SEAL_FUTURE_WRITE, which Python does not name yet."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class MemoryFile:
    """A copy of ``source``. Raises NoSpace where there is no room, StoreError where the system has no such files."""

    def __init__(self, source: Path, free_bytes: Callable[[], int] = available_memory) -> None:
        size, free = _size(source), free_bytes()
        if not has_room(size, free):
            raise NoSpace(
                f"{size} bytes of weights are more than {SHARE_MAX:g} of the {free} bytes of memory that are free"
            )
        descriptor, self._mapped = _make(source, size)
        self._close = weakref.finalize(self, os.close, descriptor)
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        """As processes of this user open it, while this one lives and has it open."""

    @contextmanager
    def tensors(self) -> Iterator[dict[str, Bits]]:
        """See the contract."""
        yield parse_raw(np.frombuffer(self._mapped, np.uint8), self.path)

    def close(self) -> None:
        """Nobody opens it from now on; its memory goes with the last reader, and with this object."""
        self._close()


def _size(source: Path) -> int:
    try:
        return source.stat().st_size
    except OSError as error:
        raise StoreError(f"cannot read {source}: {error}") from error


def _make(source: Path, size: int) -> tuple[int, mmap.mmap]:
    """A sealed file and our mapping of it. Raises StoreError; nothing is left of it then."""
    descriptor = -1
    try:
        descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(descriptor, 0o600)
        os.posix_fallocate(descriptor, 0, size)
        mapped = mmap.mmap(descriptor, size)
        _fill(mapped, source)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except (OSError, ValueError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise NoSpace(f"no file of {size} bytes in memory: {error}") from error
    return descriptor, mapped


def _fill(mapped: mmap.mmap, source: Path) -> None:
    """Raises OSError, ValueError where the source ends early."""
    with memoryview(mapped) as left, source.open("rb", buffering=0) as file:
        place = 0
        while place < len(left):
            read = file.readinto(left[place : place + PIECE_BYTES])
            if not read:
                raise ValueError(f"{source} ends after {place} bytes")
            place += read
