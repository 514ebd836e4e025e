"""A dump as a layer of a snapshot, and back: its pages in packs, its small files in one object, and what it relies on.

Names are flat and of known characters, and each object is sealed under the program's own key: an image opens only where it was made.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.errors import SnapshotRefused, StoreError
from rollout.ledger.records import Record
from rollout.objects.bulk import name_parts
from rollout.seams import ObjectSource, ObjectStore
from rollout.snapshots.layers.contract import Taken, read_part
from rollout.snapshots.manifest import LayerRecord
from rollout.snapshots.processes.node import MappedFile
from rollout.snapshots.processes.pages import Pack, PagePacking, PagesFile
from rollout.snapshots.processes.reading import PageReading
from rollout.snapshots.processes.sealing import Sealer

INDEX, FILES = "index", "files"
INDEX_BYTES_MAX, FILES_BYTES_MAX = 512 << 20, 2 << 30
PAGES_NAME = re.compile(r"pages-\d{1,9}\.img")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
NOTES, COMPLETE = "notes.json", "stats-dump"
"""Ours of a dump; what CRIU writes last of one that is whole."""
LOGS = ("dump.log", NOTES, COMPLETE)


class ImageFacts(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an image relies on: the program's id in its cell, its output's pipe, the files that it has mapped.

    ``digest`` is what its point told of its state, empty where it has none. ``cell`` and ``node`` are of a run's learner: the UID
    of its cell, and the machine that it ran on, which the header of a program's own image tells.
    """

    root: int
    pipe: int
    argv: tuple[str, ...]
    digest: str
    files: tuple[MappedFile, ...]
    cell: str = ""
    node: dict[str, str] = msgspec.field(default_factory=dict)


class _Index(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    facts: ImageFacts
    packs: tuple[Pack, ...]
    pages: tuple[PagesFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A dump as a layer; ``new_bytes`` of it were stored for it."""

    taken: Taken
    new_bytes: int


def pack_dump(
    folder: Path,
    facts: ImageFacts,
    sealer: Sealer,
    store: ObjectStore,
    base: LayerRecord | None,
    num_processes: int,
    before: Callable[[str], object] = lambda _name: None,
) -> Packed:
    """Store the pages of a dump that ``base``, an older image of the program, has not. Raises StoreError, SnapshotRefused.

    ``before`` is told of each object before it is stored.
    """
    stored: dict[str, int] = {}

    def keep(data: bytes) -> str:
        name = name_parts([data])
        before(name)
        store.keep(name, [data])
        stored[name] = len(data)
        return name

    known = () if base is None else _read_index(base, sealer, store).packs
    packing = PagePacking(sealer, keep, known, lambda name: store.path(name).read_bytes())
    paths = sorted(path for path in folder.iterdir() if path.name not in LOGS and path.is_file())
    added = [packing.add(path) for path in paths if PAGES_NAME.fullmatch(path.name)]
    packs, pages = packing.finish(added)
    small = {path.name: path.read_bytes() for path in paths if not PAGES_NAME.fullmatch(path.name)}
    index = msgspec.msgpack.encode(_Index(facts=facts, packs=packs, pages=pages))
    made = {
        INDEX: sealer.seal(INDEX, index),
        FILES: sealer.seal(FILES, msgspec.msgpack.encode(small, order="deterministic")),
    }
    counts = {
        "processes": num_processes,
        "pages": packing.pages,
        "zero_pages": packing.zero_pages,
        "new_pages": packing.new_pages,
    }
    taken = Taken(
        kind="process",
        grade="exact",
        restore_scope="sameNode",
        facts=counts,
        present=_parts(packs),
        made=made,
    )
    return Packed(taken=taken, new_bytes=sum(stored.values()) + sum(map(len, made.values())))


def read_facts(record: LayerRecord, sealer: Sealer, source: ObjectSource) -> ImageFacts:
    """What an image relies on. Raises StoreError, SnapshotRefused."""
    return _read_index(record, sealer, source).facts


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedImage:
    """A dump's small files by name, and its files of pages."""

    files: Mapping[str, bytes]
    pages: PageReading


def open_image(record: LayerRecord, sealer: Sealer, source: ObjectSource) -> OpenedImage:
    """A dump, to be read from its objects. Raises StoreError, SnapshotRefused."""
    index = _read_index(record, sealer, source)
    if _parts(index.packs) != _packs_of(record):
        raise StoreError("layer process: its index names other objects than its manifest")
    data = sealer.open(FILES, read_part(record, FILES, source), FILES_BYTES_MAX)
    try:
        files = msgspec.msgpack.decode(data, type=dict[str, bytes])
    except (msgspec.ValidationError, *UNREADABLE) as error:
        raise StoreError(f"layer process: part {FILES} cannot be read: {error}") from error
    for name in (*files, *(one.name for one in index.pages)):
        if not NAME.fullmatch(name):
            raise SnapshotRefused(f"layer process: {name[:120]!r} is no file of an image")
    pages = PageReading(index.pages, index.packs, sealer, lambda name: map_file(source.path(name)))
    return OpenedImage(files=files, pages=pages)


def _read_index(record: LayerRecord, sealer: Sealer, source: ObjectSource) -> _Index:
    data = sealer.open(INDEX, read_part(record, INDEX, source), INDEX_BYTES_MAX)
    try:
        return msgspec.msgpack.decode(data, type=_Index)
    except (msgspec.ValidationError, *UNREADABLE) as error:
        raise StoreError(f"layer process: part {INDEX} cannot be read: {error}") from error


def map_file(path: Path) -> bytes | mmap.mmap:
    """A file's bytes, without a copy of them. Raises StoreError."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def _parts(packs: tuple[Pack, ...]) -> dict[str, str]:
    named = {f"pack/{number:05d}": pack.object for number, pack in enumerate(packs)}
    return named | {f"table/{number:05d}": pack.table for number, pack in enumerate(packs)}


def _packs_of(record: LayerRecord) -> Mapping[str, str]:
    return {part.name: part.object for part in record.parts if part.name not in (INDEX, FILES)}
