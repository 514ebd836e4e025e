"""The pages of an image in the order of its files: packs are opened ahead of who reads, once each, and let go with their last page.

Nothing of it is written anywhere. Memory is used again: to open a pack into fresh memory costs more than to decrypt it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from rollout.errors import StoreError
from rollout.snapshots.processes.pages import (
    PACK,
    PACK_PAGES,
    PAGE_BYTES,
    Pack,
    PagesFile,
    Read,
)
from rollout.snapshots.processes.sealing import Sealer

AHEAD = 1
"""So many packs are opened before they are needed: more would need more memory, and new memory is what costs."""
THREADS_MAX = 2
BATCH_RUNS_MAX, BATCH_PAGES_MAX = 512, 1024
SPARE_MAX = 4
ZEROS = memoryview(bytes(BATCH_PAGES_MAX * PAGE_BYTES))


class PageReading:
    """Reads files of pages, several at a time, each by its own thread."""

    def __init__(
        self, files: Sequence[PagesFile], packs: Sequence[Pack], sealer: Sealer, read: Read
    ) -> None:
        """Raises StoreError for a page that lies nowhere."""
        self._packs, self._sealer, self._read = packs, sealer, read
        self._places = {one.name: np.frombuffer(one.places, dtype="<i4") for one in files}
        for name, places in self._places.items():
            _require_places(name, places, packs)
        self._left = sum(map(self._uses, self._places), np.zeros(len(packs), dtype=np.int64))
        self._begun: set[str] = set()
        self._opened: dict[int, Future[bytearray]] = {}
        self._spare: list[bytearray] = []
        self._lock = threading.Lock()
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(THREADS_MAX)

    def __enter__(self) -> Self:
        """Begins with the first packs of the largest file."""
        largest = max(self._places, key=lambda name: len(self._places[name]), default=None)
        if largest is not None:
            for number in _by_first_use(self._places[largest])[:AHEAD]:
                self._begin(number)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __contains__(self, name: str) -> bool:
        """Whether there is such a file."""
        return name in self._places

    def names(self) -> tuple[str, ...]:
        """The files."""
        return tuple(self._places)

    def batches(self, name: str) -> Iterator[list[memoryview]]:
        """All of a file in pieces, some at a time; a batch is not to be used after the next one. Raises StoreError, SnapshotRefused."""
        places = self._places[name]
        with self._lock:
            if name in self._begun:
                self._left += self._uses(name)
            self._begun.add(name)
        ahead = deque(_by_first_use(places))
        seen: set[int] = set()
        for batch in _batched(_runs(places)):
            pieces = []
            for start, count in batch:
                number, slot = divmod(int(places[start]), PACK_PAGES)
                if places[start] < 0:
                    pieces.append(ZEROS[: count * PAGE_BYTES])
                    continue
                if number not in seen:
                    seen.add(number)
                    self._look_ahead(ahead)
                pages = memoryview(self._begin(number).result())
                pieces.append(pages[slot * PAGE_BYTES : (slot + count) * PAGE_BYTES])
            yield pieces
            for start, count in batch:
                self._let_go(int(places[start]) // PACK_PAGES, count)

    def _look_ahead(self, ahead: deque[int]) -> None:
        """The pack that is needed now, and those that are needed next."""
        for number in list(ahead)[: 1 + AHEAD]:
            self._begin(number)
        ahead.popleft()

    def _begin(self, number: int) -> Future[bytearray]:
        with self._lock:
            if number not in self._opened:
                self._opened[number] = self._pool.submit(self._open, number)
            return self._opened[number]

    def _open(self, number: int) -> bytearray:
        pack = self._packs[number]
        with self._lock:
            memory = self._spare.pop() if self._spare else None
        memory = memory or bytearray(max(one.pages for one in self._packs) * PAGE_BYTES)
        if not hasattr(self._own, "work"):
            self._own.work = bytearray()
        pages = memoryview(memory)[: pack.pages * PAGE_BYTES]
        self._sealer.open_into(PACK, self._read(pack.object), self._own.work, pages)
        return memory

    def _let_go(self, number: int, count: int) -> None:
        if number < 0:
            return
        with self._lock:
            self._left[number] -= count
            if self._left[number] == 0:
                memory = self._opened.pop(number).result()
                if len(self._spare) < SPARE_MAX:
                    self._spare.append(memory)

    def _uses(self, name: str) -> Any:
        places = self._places[name]
        return np.bincount(places[places >= 0] // PACK_PAGES, minlength=len(self._packs))


def _require_places(name: str, places: Any, packs: Sequence[Pack]) -> None:
    numbers, slots = np.divmod(places[places >= 0], PACK_PAGES)
    if len(numbers) and int(numbers.max()) >= len(packs):
        raise StoreError(f"{name}: a page lies in a pack that the image does not name")
    sizes = np.array([pack.pages for pack in packs], dtype=np.int64)
    if len(sizes) and (sizes.min() < 1 or sizes.max() > PACK_PAGES):
        raise StoreError(f"{name}: a pack has from 1 to {PACK_PAGES} pages")
    if len(numbers) and bool((slots >= sizes[numbers]).any()):
        raise StoreError(f"{name}: a page lies past the end of its pack")


def _by_first_use(places: Any) -> list[int]:
    numbers, first = np.unique(places[places >= 0] // PACK_PAGES, return_index=True)
    return numbers[np.argsort(first)].tolist()


def _runs(places: Any) -> Iterator[tuple[int, int]]:
    """Where pages begin that lie one behind the other in one pack, or are zeros, and how many they are."""
    if not len(places):
        return
    are_zeros = places < 0
    follows = np.diff(places) == 1
    follows &= places[1:] % PACK_PAGES != 0
    follows &= ~are_zeros[:-1] & ~are_zeros[1:]
    follows |= are_zeros[:-1] & are_zeros[1:]
    starts = np.concatenate(([0], np.flatnonzero(~follows) + 1))
    ends = np.append(starts[1:], len(places))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        for at in range(start, end, BATCH_PAGES_MAX):
            yield at, min(BATCH_PAGES_MAX, end - at)


def _batched(runs: Iterator[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    batch: list[tuple[int, int]] = []
    pages = 0
    for run in runs:
        if batch and (len(batch) == BATCH_RUNS_MAX or pages + run[1] > BATCH_PAGES_MAX):
            yield batch
            batch, pages = [], 0
        batch.append(run)
        pages += run[1]
    if batch:
        yield batch
