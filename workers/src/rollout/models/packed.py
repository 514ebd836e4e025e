"""A model folder as one object: what a run hands on to the runs that start from it.

An uncompressed tar with nothing in it but names and bytes, so that equal models are one object wherever they
were packed. Read from memory-mapped files and never joined: a model of any size takes no memory. Whoever
may write to a store may have written a packed model: its members are read here, one header at a time, and
anything but a regular file with a model file's plain name is refused before it has an effect.
"""

from __future__ import annotations

import mmap
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from blake3 import blake3

from rollout.errors import StoreError
from rollout.models.files import MARKER, SUFFIXES, model_files

CLAIM = "pvc://"
"""Scheme of a place that is a folder of another run's volume: ``pvc://CLAIM/FOLDER``."""
_URI = re.compile(r"^(?P<place>[a-z0-9]+://.+)/blake3/[0-9a-f]{2}/(?P<name>[0-9a-f]{64})$")
_NAME = re.compile(r"[!-\-0-\[\]-~][ -.0-\[\]-~]{0,98}")
"""Printable ASCII without slashes that a tar header holds; no leading dot or space."""
FILES_MAX = 10_000
BYTES_MAX = 8 << 40
_CHUNK = 1 << 20


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


def is_unpacked(folder: Path, digest: str) -> bool:
    """Whether a cached folder holds the files of the packed model of this digest, and nothing else."""
    found = {path for path in folder.iterdir() if path.name != MARKER}
    if found != set(model_files(folder)) or any(path.is_symlink() for path in found):
        return False
    root = blake3(max_threads=blake3.AUTO)
    try:
        for part in pack(folder):
            root.update(part)
    except StoreError:
        return False
    return f"blake3:{root.hexdigest()}" == digest


def _parts(folder: Path) -> Iterator[bytes | memoryview]:
    for path in model_files(folder):
        size = path.stat().st_size
        head = tarfile.TarInfo(_checked_name(path.name))
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
        folder.mkdir(exist_ok=True)
        with packed.open("rb") as archive:
            _read_all(archive, folder)
    except (StoreError, tarfile.TarError, OSError) as error:
        raise StoreError(f"{packed} cannot be unpacked as a model: {error}") from error


def _read_all(archive: IO[bytes], folder: Path) -> None:
    """Write every member. The bound on bytes is on what is written, while it is."""
    names: set[str] = set()
    left = BYTES_MAX
    while (head := _read_head(archive)) is not None:
        name = _checked_name(head.name)
        left -= head.size
        if name in names:
            raise StoreError(f"{name} comes twice")
        if len(names) >= FILES_MAX:
            raise StoreError(f"it has more than {FILES_MAX} files")
        if left < 0:
            raise StoreError(f"it has more than {BYTES_MAX} bytes")
        names.add(name)
        with (folder / name).open("xb") as file:
            _copy(archive, file, head.size)
        archive.seek(-head.size % tarfile.BLOCKSIZE, 1)
    if not names:
        raise StoreError("it has no files")


def _read_head(archive: IO[bytes]) -> tarfile.TarInfo | None:
    """The next member's header; None at the end."""
    block = archive.read(tarfile.BLOCKSIZE)
    if not any(block):
        return None
    head = tarfile.TarInfo.frombuf(block, "ascii", "backslashreplace")
    if head.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise StoreError(
            f"{head.name!r:.120} is of type {head.type!r}, expected regular files only"
        )
    if head.size < 0:
        raise StoreError(f"{head.name!r:.120} has {head.size} bytes")
    return head


def _checked_name(name: str) -> str:
    """The name, if it is flat and one of a model's. Raises StoreError."""
    if _NAME.fullmatch(name) is None or Path(name).suffix not in SUFFIXES:
        raise StoreError(
            f"expected a model file's name (printable ASCII, no folder, {', '.join(SUFFIXES)}), got"
            f" {name!a:.120}"
        )
    return name


def _copy(archive: IO[bytes], file: IO[bytes], size: int) -> None:
    while size:
        part = archive.read(min(size, _CHUNK))
        if not part:
            raise StoreError("it ends within a file")
        file.write(part)
        size -= len(part)
