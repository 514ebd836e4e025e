"""A model folder as one object: what a run hands on to the runs that start from it.

An uncompressed tar with nothing in it but names and bytes, so that equal models are one object wherever they
were packed. Read from memory-mapped files and never joined: a model of any size takes no memory.
"""

from __future__ import annotations

import mmap
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout.errors import StoreError
from rollout.models.files import model_files

CLAIM = "pvc://"
"""Scheme of a place that is a folder of another run's volume: ``pvc://CLAIM/FOLDER``."""
_URI = re.compile(r"^(?P<place>[a-z0-9]+://.+)/blake3/[0-9a-f]{2}/(?P<name>[0-9a-f]{64})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedModel:
    """Where a packed model lies: the root of an object store, and the object in it."""

    place: str
    digest: str

    def __str__(self) -> str:
        """Its URI."""
        name = self.digest.removeprefix("blake3:")
        return f"{self.place}/blake3/{name[:2]}/{name}"


def parse_packed(uri: str | None) -> PackedModel | None:
    """The packed model that a URI names; None for any other URI."""
    found = _URI.match(uri or "")
    if found is None:
        return None
    return PackedModel(place=found["place"], digest=f"blake3:{found['name']}")


def pack(folder: Path) -> Sequence[bytes | memoryview]:
    """The files of a model folder as one object, in parts."""
    return [*_parts(folder), bytes(2 * tarfile.BLOCKSIZE)]


def _parts(folder: Path) -> Iterator[bytes | memoryview]:
    for path in model_files(folder):
        size = path.stat().st_size
        head = tarfile.TarInfo(path.name)
        head.size = size
        yield head.tobuf(tarfile.GNU_FORMAT)
        yield _map(path) if size else b""
        yield bytes(-size % tarfile.BLOCKSIZE)


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def unpack(packed: Path, folder: Path) -> None:
    """The files of a packed model, into an empty folder. Raises StoreError for what is none."""
    try:
        with tarfile.open(packed, "r:") as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise StoreError(f"{packed} cannot be unpacked as a model: {error}") from error
