"""Weights as files, also where a version was stored as a delta: a mirror file is patched and read instead.

The mirror is a safetensors file of this process alone, in memory where it may be and there is room, else in a folder.
It starts as a copy of a dense base and is patched in place, version by version; whoever reads it must have finished
before the next version is asked for. It is never trusted further than its reader checks: told that what it gave was not
the version, it is thrown away and made again from the dense base.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Callable
from pathlib import Path

from rollout.common.machine_memory import available_memory
from rollout.errors import StoreError
from rollout.seams import ObjectSource
from rollout.weights.delta import MAGIC, DeltaBroken, apply_delta, read_header
from rollout.weights.mirrors.contract import MirrorFile
from rollout.weights.mirrors.disk import DiskFile
from rollout.weights.mirrors.memory import MemoryFile

log = logging.getLogger(__name__)

HEAD_BYTES = len(MAGIC)


class WeightFiles:
    """Files of weights by the object that a version names. Thread-safe.

    ``folder`` is this process's own; what an earlier one left in it is not used. ``in_memory``: a mirror lies in memory
    where ``free_bytes`` says that there is room, and may be opened by processes that see this one. ``num_rebuilt``
    counts how often the mirror was made again because it was not what it should have been.
    """

    def __init__(
        self,
        store: ObjectSource,
        folder: Path,
        *,
        in_memory: bool = False,
        free_bytes: Callable[[], int] = available_memory,
    ) -> None:
        self._store = store
        self._folder = folder
        self._in_memory = in_memory
        self._free_bytes = free_bytes
        self._file: MirrorFile | None = None
        self._holds = ""
        self._lock = threading.Lock()
        self.num_rebuilt = 0

    def path(self, name: str) -> Path:
        """A safetensors file of the version. Raises StoreError when an object is missing or damaged."""
        found = self._store.path(name)
        bases = read_bases(found)
        if not bases:
            return found
        with self._lock:
            try:
                return self._patch(name, bases)
            except DeltaBroken as error:
                log.warning("mirror is made again object=%s reason=%s", name, error)
                self.num_rebuilt += 1
                self._holds = ""
                return self._patch(name, bases)

    def changes(self, since: str, name: str) -> frozenset[str] | None:
        """Tensors that the deltas from ``since`` to ``name`` touch; None where no deltas lead there.

        Raises StoreError.
        """
        chain = [name, *read_bases(self._store.path(name))]
        if since not in chain:
            return None
        deltas = chain[: chain.index(since)]
        headers = [read_header(_map(self._store.path(delta)))[0] for delta in deltas]
        return frozenset(one.name for header in headers for one in header.tensors)

    def forget(self) -> None:
        """The last file was not what it should have been: start from the dense base the next time."""
        with self._lock:
            self.num_rebuilt += bool(self._holds)
            self._holds = ""

    def _patch(self, name: str, bases: tuple[str, ...]) -> Path:
        """Bring the mirror from what it holds, or from the dense base, to the version."""
        chain = [name, *bases]
        file = self._file
        if file is None or self._holds not in chain:
            file = self._copy(chain[-1])
            self._holds = chain[-1]
        for delta in reversed(chain[: chain.index(self._holds)]):
            path = self._store.path(delta)
            before, self._holds = self._holds, ""
            with file.tensors() as tensors:
                apply_delta(tensors, _map(path))
            log.debug("mirror patched from=%s to=%s", before, delta)
            self._holds = delta
        return file.path

    def _copy(self, base: str) -> MirrorFile:
        """A new file: whoever has the old one open or mapped keeps it."""
        source = self._store.path(base)
        old, self._file, self._holds = self._file, None, ""
        if old is not None:
            old.close()
        self._file = self._place(source)
        return self._file

    def _place(self, source: Path) -> MirrorFile:
        if self._in_memory:
            try:
                return MemoryFile(source, self._free_bytes)
            except StoreError as error:
                log.warning("weights are patched on disk folder=%s reason=%s", self._folder, error)
        return DiskFile(source, self._folder / "weights.safetensors")


def read_bases(path: Path) -> tuple[str, ...]:
    """The objects that a delta builds on, the dense base last; none for a dense object. Raises StoreError."""
    try:
        with path.open("rb") as file:
            if file.read(HEAD_BYTES) != MAGIC:
                return ()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    bases = read_header(_map(path))[0].bases
    if not bases:
        raise DeltaBroken(f"weight delta {path} names no base")
    return bases


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
