"""A snapshot as one file, for where there is no common place: a plain tar, the manifest first, then each object once.

A file appears whole or not at all. What is read is read strictly: regular members, the manifest's own objects, their own
sizes, each once, nothing else; no header that describes another is believed.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from rollout.common.atomic_files import replacing
from rollout.errors import SnapshotRefused, StoreError
from rollout.objects.filesystem import fail_on_disk, make_folder
from rollout.seams import ObjectSource
from rollout.snapshots.collection import pinned
from rollout.snapshots.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    encode_manifest,
    parse_manifest,
)
from rollout.snapshots.place import SnapshotPlace, commit_manifest

MANIFEST, OBJECTS = "manifest.json", "objects/"
BLOCK_BYTES, CHUNK_BYTES = 512, 1 << 20
KIND = "blake3:"


def write_archive(manifest: Manifest, source: ObjectSource, target: Path) -> int:
    """Write a snapshot to a file that is not there yet; its bytes. Raises StoreError, SnapshotRefused where it is another's."""
    if target.exists():
        return _check_same(manifest, target)
    staged = target.with_name(f".{target.name}.partial")
    try:
        with replacing(target, durable=True, staged=staged) as file:
            _write_members(file, manifest, source)
    except OSError as error:
        fail_on_disk("write", target, error)
    return target.stat().st_size


def read_archived_manifest(path: Path) -> Manifest:
    """The manifest of a file. Raises SnapshotRefused for a file that is no archive of a snapshot."""
    with _opened(path) as file:
        return _read_manifest(file, path)


def store_archive(path: Path, place: SnapshotPlace, scratch: Path) -> Manifest:
    """Have a place hold the snapshot of a file. Raises SnapshotRefused, StoreError; nothing is committed then."""
    with _opened(path) as file:
        manifest = _read_manifest(file, path)
        with pinned(place.named, manifest.objects), _folder_in(scratch) as folder:
            left = dict(manifest.objects)
            for name, size in _members(file, path):
                digest = f"{KIND}{name.removeprefix(OBJECTS)}"
                if not name.startswith(OBJECTS) or left.pop(digest, None) != size:
                    raise SnapshotRefused(
                        f"{path}: member {name[:120]!r} is none of this snapshot's"
                    )
                _store_object(file, size, digest, place, folder / "object")
                _skip_padding(file, size)
            if left:
                raise SnapshotRefused(
                    f"{path}: {len(left)} objects of the snapshot are missing, {next(iter(left))} first: the"
                    " file was cut short; export it again"
                )
            return commit_manifest(place.named, manifest)


def _write_members(file: BinaryIO, manifest: Manifest, source: ObjectSource) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        text = encode_manifest(manifest)
        _add(archive, MANIFEST, len(text))
        file.write(text)
        _pad(archive, file, len(text))
        for digest, size in sorted(manifest.objects.items()):
            _add(archive, f"{OBJECTS}{digest.removeprefix(KIND)}", size)
            with source.path(digest).open("rb") as data:
                while chunk := data.read(CHUNK_BYTES):
                    file.write(chunk)
            _pad(archive, file, size)


def _add(archive: tarfile.TarFile, name: str, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o444
    archive.addfile(member)


def _pad(archive: tarfile.TarFile, file: BinaryIO, size: int) -> None:
    file.write(b"\0" * (-size % BLOCK_BYTES))
    archive.offset = file.tell()


def _check_same(manifest: Manifest, target: Path) -> int:
    """The bytes of a file that holds this very snapshot whole. Raises SnapshotRefused for any other."""
    found = read_archived_manifest(target)
    with _opened(target) as file:
        _read_manifest(file, target)
        members = []
        for name, size in _members(file, target):
            members.append((f"{KIND}{name.removeprefix(OBJECTS)}", size))
            file.seek(size + (-size % BLOCK_BYTES), os.SEEK_CUR)
    if found.id != manifest.id or dict(members) != manifest.objects:
        raise SnapshotRefused(f"{target}: another snapshot is there; name another file")
    return target.stat().st_size


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise SnapshotRefused(f"{path} cannot be read: {error}") from error


def _read_manifest(file: BinaryIO, path: Path) -> Manifest:
    name, size = next(_members(file, path), ("nothing", 0))
    if name != MANIFEST or size > MANIFEST_BYTES_MAX:
        raise SnapshotRefused(
            f"{path}: not an exported snapshot: expected {MANIFEST} first, got {name[:120]!r} of {size} bytes"
        )
    manifest = parse_manifest(file.read(size), f"{path}: {MANIFEST}")
    _skip_padding(file, size)
    return manifest


def _members(file: BinaryIO, path: Path) -> Iterator[tuple[str, int]]:
    """Name and size of each member; whoever asks has read its bytes and padding before the next one."""
    while (block := file.read(BLOCK_BYTES)) and block != b"\0" * BLOCK_BYTES:
        try:
            member = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError, ValueError) as error:
            raise SnapshotRefused(f"{path}: not an exported snapshot: {error}") from error
        if member.type != tarfile.REGTYPE or member.size < 0:
            raise SnapshotRefused(f"{path}: member {member.name[:120]!r} is no plain file")
        yield member.name, member.size


def _skip_padding(file: BinaryIO, size: int) -> None:
    file.read(-size % BLOCK_BYTES)


def _store_object(
    file: BinaryIO, size: int, digest: str, place: SnapshotPlace, staged: Path
) -> None:
    try:
        with staged.open("wb") as copy:
            for chunk in _chunks(file, size, digest):
                copy.write(chunk)
    except OSError as error:
        fail_on_disk("write", staged, error)
    if (stored := place.store.put_file(staged)) != digest:
        place.store.delete(stored)
        raise StoreError(f"object {digest} of an exported snapshot has other bytes: {stored}")


def _chunks(file: BinaryIO, size: int, digest: str) -> Iterator[bytes]:
    left = size
    while left:
        try:
            chunk = file.read(min(left, CHUNK_BYTES))
        except OSError as error:
            raise SnapshotRefused(
                f"object {digest} cannot be read from its file: {error}"
            ) from error
        if not chunk:
            raise SnapshotRefused(
                f"object {digest} ends {left} bytes early: the file was cut short"
            )
        left -= len(chunk)
        yield chunk


@contextmanager
def _folder_in(scratch: Path) -> Iterator[Path]:
    make_folder(scratch)
    try:
        folder = TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True)
    except OSError as error:
        fail_on_disk("make a folder in", scratch, error)
    with folder as name:
        yield Path(name)
