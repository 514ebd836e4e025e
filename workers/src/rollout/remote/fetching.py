"""Files of a host, brought here: each by its digest, a part that is here gone on with, none believed before it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from rollout.errors import ConnectionLost, HostError
from rollout.remote.host import RemoteHost
from rollout.remote.parcel import hash_file


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file: its name in the folder that is made here, and where it lies there."""

    name: str
    path: str
    size: int
    digest: str


def fetch_files(host: RemoteHost, files: Sequence[RemoteFile], target: Path) -> None:
    """Have them in ``target``. Raises HostError for a name that leads out of it, ConnectionLost in the middle."""
    lacking = [(one, _place(target, one)) for one in files if not _is_here(target, one)]
    if not lacking:
        return
    offsets = [_offset(one, _part(place)) for one, place in lacking]
    rows = [[one.path, one.size, start] for (one, _), start in zip(lacking, offsets, strict=True)]
    stream = FileBytes(host.read("read", {"files": rows}))
    for (one, place), offset in zip(lacking, offsets, strict=True):
        part = _part(place)
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            stream.copy(file, one.size - offset, one.name)
        if hash_file(part)[0] != one.digest:
            part.unlink()
            raise ConnectionLost(
                f"{host.ssh.address}: {one.name} came damaged, or changed meanwhile"
            )
        part.replace(place)
    stream.end()


class FileBytes:
    """Bytes of several files after one another."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def copy(self, file: BinaryIO, size: int, name: str) -> None:
        """Write the next ``size`` bytes. Raises ConnectionLost where they end before."""
        while size:
            chunk = self._rest or next(self._chunks, b"")
            if not chunk:
                raise ConnectionLost(f"{name}: it ended {size} bytes too early")
            file.write(chunk[:size])
            self._rest = chunk[size:]
            size -= min(size, len(chunk))

    def end(self) -> None:
        """Wait for the end of the connection."""
        for _ in self._chunks:
            pass


def _place(target: Path, file: RemoteFile) -> Path:
    parts = PurePosixPath(file.name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise HostError(f"the host names a file {file.name!r}, which leads out of its folder")
    return target.joinpath(*parts)


def _part(place: Path) -> Path:
    return place.with_name(f"{place.name}.part")


def _offset(file: RemoteFile, part: Path) -> int:
    """How many of its bytes are here; 0 where what is here cannot be its beginning."""
    there = _size(part)
    return there if there <= file.size else 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_here(target: Path, file: RemoteFile) -> bool:
    place = _place(target, file)
    return _size(place) == file.size and place.is_file() and hash_file(place)[0] == file.digest
