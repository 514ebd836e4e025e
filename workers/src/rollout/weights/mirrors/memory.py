"""A mirror in this machine's memory, which no folder names and nobody else changes (``rollout_vllm.sending.memory``)."""

from __future__ import annotations

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
from rollout_vllm.sending.memory import SealedMemory


class MemoryFile:
    """A copy of ``source``. Raises NoSpace where there is no room or the system has no such files, StoreError without a source."""

    def __init__(self, source: Path, free_bytes: Callable[[], int] = available_memory) -> None:
        size, free = _size(source), free_bytes()
        if not has_room(size, free):
            raise NoSpace(
                f"{size} bytes of weights are more than {SHARE_MAX:g} of the {free} bytes of memory that are free"
            )
        try:
            self._held = SealedMemory(size)
            _fill(self._held, source)
            self._held.seal()
        except (OSError, ValueError) as error:
            raise NoSpace(f"no file of {size} bytes in memory: {error}") from error

    @property
    def path(self) -> Path:
        """As processes of this user open it, while this one lives and has it open."""
        return self._held.path

    @contextmanager
    def tensors(self) -> Iterator[dict[str, Bits]]:
        """See the contract."""
        yield parse_raw(np.frombuffer(self._held.mapped, np.uint8), self.path)

    def close(self) -> None:
        """Nobody opens it from now on; its memory goes with the last reader, and with this object."""
        self._held.close()


def _size(source: Path) -> int:
    try:
        return source.stat().st_size
    except OSError as error:
        raise StoreError(f"cannot read {source}: {error}") from error


def _fill(held: SealedMemory, source: Path) -> None:
    """Raises OSError, ValueError where the source ends early."""
    with memoryview(held.mapped) as left, source.open("rb", buffering=0) as file:
        place = 0
        while place < len(left):
            read = file.readinto(left[place : place + PIECE_BYTES])
            if not read:
                raise ValueError(f"{source} ends after {place} bytes")
            place += read
