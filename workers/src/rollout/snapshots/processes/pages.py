"""Pages of memory as objects: 4 KiB each, zero ones left out, equal ones kept once, in packs that are compressed and sealed.

A pack never changes. An image says for each page in which pack and place it lies, so that the next image of the same
program stores only the pages that it has not seen: of a process, most pages stay as they are, each where it was.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from msgspec import field

from rollout.errors import StoreError
from rollout.ledger.records import Record
from rollout.snapshots.processes.sealing import Sealer

PAGE_BYTES, DIGEST_BYTES = 4096, 16
PACK_PAGES, NEW_PACK_PAGES = 8192, 4096
"""What places count with, the most that a pack has, and what new ones have: a restore goes on with the first pages of a smaller one sooner."""
ZERO_PAGE = -1
"""Where a page of zeros lies."""
PACK, TABLE = "pack", "table"

Keep = Callable[[bytes], str]
"""Stores an object; its name."""
Read = Callable[[str], bytes | mmap.mmap]
"""The verified bytes of an object."""


class Pack(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many pages in one object, and the object that has their digests, by which they are found again."""

    object: str
    table: str
    pages: int


class PagesFile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of pages: for each its place, ``pack * PACK_PAGES + slot``, as little-endian 32-bit numbers."""

    name: str
    places: bytes = field(default=b"")


class PagePacking:
    """Puts pages into packs: new ones behind those of ``known`` packs, whose pages are not stored again."""

    def __init__(self, sealer: Sealer, keep: Keep, known: Sequence[Pack], read: Read) -> None:
        self._sealer, self._keep = sealer, keep
        self._packs = list(known)
        self._places = _places_of(known, sealer, read)
        self._digests: list[bytes] = []
        self._pages: list[bytes] = []
        self.new_pages = self.zero_pages = self.pages = 0

    def add(self, path: Path) -> PagesFile:
        """The pages of a file. Raises StoreError for one that is not of whole pages."""
        size = path.stat().st_size
        if size % PAGE_BYTES:
            raise StoreError(f"{path.name}: {size} bytes are no whole pages")
        places = np.full(size // PAGE_BYTES, ZERO_PAGE, dtype="<i4")
        if size:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                self._add(data, places)
        return PagesFile(name=path.name, places=places.tobytes())

    def finish(self, used: Iterable[PagesFile]) -> tuple[tuple[Pack, ...], tuple[PagesFile, ...]]:
        """All packs that the files need, and the files by the order of those; called once, last."""
        if self._pages:
            self._close_pack()
        files = tuple(used)
        arrays = [np.frombuffer(one.places, dtype="<i4") for one in files]
        needed = sorted({int(n) for a in arrays for n in np.unique(a[a >= 0] // PACK_PAGES)})
        order = np.zeros(len(self._packs) + 1, dtype="<i4")
        order[needed] = np.arange(len(needed))
        moved = [_renumber(array, order) for array in arrays]
        renamed = tuple(
            PagesFile(name=one.name, places=places.tobytes())
            for one, places in zip(files, moved, strict=True)
        )
        return tuple(self._packs[number] for number in needed), renamed

    def _add(self, data: mmap.mmap, places: Any) -> None:
        for start in range(0, len(places), PACK_PAGES):
            count = min(PACK_PAGES, len(places) - start)
            block = data[start * PAGE_BYTES : (start + count) * PAGE_BYTES]
            full = np.frombuffer(block, dtype="<u8").reshape(count, -1).any(axis=1)
            self.pages += count
            self.zero_pages += count - int(full.sum())
            for index in np.flatnonzero(full).tolist():
                at = index * PAGE_BYTES
                places[start + index] = self._place(block[at : at + PAGE_BYTES])

    def _place(self, page: bytes) -> int:
        digest = blake3(page).digest(DIGEST_BYTES)
        found = self._places.get(digest)
        if found is not None:
            return found
        place = len(self._packs) * PACK_PAGES + len(self._pages)
        self._places[digest] = place
        self._digests.append(digest)
        self._pages.append(page)
        self.new_pages += 1
        if len(self._pages) == NEW_PACK_PAGES:
            self._close_pack()
        return place

    def _close_pack(self) -> None:
        pack = self._keep(self._sealer.seal(PACK, b"".join(self._pages)))
        table = self._keep(self._sealer.seal(TABLE, b"".join(self._digests)))
        self._packs.append(Pack(object=pack, table=table, pages=len(self._pages)))
        self._pages, self._digests = [], []


def _places_of(known: Sequence[Pack], sealer: Sealer, read: Read) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for number, pack in enumerate(known):
        table = sealer.open(TABLE, read(pack.table), PACK_PAGES * DIGEST_BYTES)
        if len(table) != pack.pages * DIGEST_BYTES:
            raise StoreError(f"pack {pack.object}: its table is of another number of pages")
        for slot, digest in enumerate(_digests(table)):
            found.setdefault(digest, number * PACK_PAGES + slot)
    return found


def _digests(table: bytes) -> Iterator[bytes]:
    return (table[at : at + DIGEST_BYTES] for at in range(0, len(table), DIGEST_BYTES))


def _renumber(places: Any, order: Any) -> Any:
    return np.where(
        places < 0, ZERO_PAGE, order[places // PACK_PAGES] * PACK_PAGES + places % PACK_PAGES
    )
