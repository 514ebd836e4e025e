"""A file of the hub, byte for byte: resumed where an earlier try ended, kept only when its digest is the one that is listed.

Bytes lie in ``blobs/<digest>.partial`` of the hub's cache until they are all there and right; then they are the
cache's blob, in one rename. What the hub keeps in Xet storage is left to its own library, which compares digests itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from rollout.errors import StoreError

FILES_AT_ONCE = 4
TRIES = 2
"""Whole downloads of a file whose bytes are not those of its digest."""
IN_VAIN_MAX = 3
"""Bodies of one file that resets cut off before a byte came."""
PAUSE_SECONDS = 1.0
READ_BYTES = 1 << 20
SPARE_BYTES = 16 << 20
"""Left free on the disk beside what is downloaded."""
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file as the hub lists it. ``digest`` is a hex SHA-256 of its bytes, or git's SHA-1 of the blob; ``is_xet``: kept in Xet storage."""

    name: str
    size_bytes: int
    digest: str
    is_xet: bool = False


def is_digest(text: str) -> bool:
    """Whether a hub's tag of a file says what its bytes are."""
    return bool(_SHA256.fullmatch(text) or _SHA1.fullmatch(text))


def repository_folder(repo: str, kind: str = "model") -> Path:
    """Where the hub's cache keeps a repository; ``kind`` is ``model`` or ``dataset``."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"{kind}s--{repo.replace('/', '--')}"


def place_files(
    files: Sequence[HubFile], urls: Mapping[str, str], folder: Path, headers: Mapping[str, str]
) -> None:
    """Bring files into ``folder/blobs`` of a repository's cache; ``urls`` by file name.

    Raises StoreError for a disk that is full or cannot be written and for bytes that are not those that are listed, and
    what the hub's library raises.
    """
    blobs = folder / "blobs"
    wanted = {one.digest: one for one in files if not (blobs / one.digest).exists()}
    if not wanted:
        return
    _make(blobs)
    _require_space(list(wanted.values()), blobs)
    own = [one for one in wanted.values() if not one.is_xet]
    with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
        placed = [threads.submit(_place, one, urls[one.name], blobs, dict(headers)) for one in own]
        for one in placed:
            one.result()


def _make(blobs: Path) -> None:
    try:
        blobs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the hub's cache {blobs} cannot be written ({error.strerror}); set HF_HOME to a folder you may write to"
        ) from error


def _require_space(files: Sequence[HubFile], blobs: Path) -> None:
    here = sum(_size(_partial(blobs, one)) for one in files)
    needed = max(0, sum(one.size_bytes for one in files) - here)
    place = os.statvfs(blobs)
    free = place.f_bavail * place.f_frsize
    if needed + SPARE_BYTES > free:
        raise StoreError(
            f"the disk of the hub's cache {blobs} has {free >> 20} MiB free, and {_mib(needed)} MiB are still to be"
            f" downloaded; free space there, or set HF_HOME to a folder on another disk"
        )


def _mib(size_bytes: int) -> int:
    return -(-size_bytes >> 20)


def _partial(blobs: Path, file: HubFile) -> Path:
    return blobs / f"{file.digest}.partial"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _place(file: HubFile, url: str, blobs: Path, headers: dict[str, str]) -> None:
    partial = _partial(blobs, file)
    for _ in range(TRIES):
        with _opened(partial) as bytes_here:
            if (blobs / file.digest).exists():  # another process was first, and held the lock
                partial.unlink(missing_ok=True)
                return
            _download(file, url, bytes_here, headers)
            found = _digest(bytes_here, file)
            if found == file.digest:
                partial.replace(blobs / file.digest)
                return
            bytes_here.truncate(0)
    raise StoreError(
        f"file {file.name}: the hub lists the digest {file.digest} and sent bytes of {found}, {TRIES} times; nothing of"
        f" them is kept. Try again, or ask another hub (HF_ENDPOINT)"
    )


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes so far, held against other processes that download the same."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield cast("BinaryIO", file)


def _download(file: HubFile, url: str, out: BinaryIO, headers: dict[str, str]) -> None:
    """All bytes of a file, behind those that are there. The library asks again, but not for a body that a reset cut off."""
    from httpx2 import ReadError

    in_vain = 0
    while True:
        here = _end(out, file.size_bytes)
        try:
            _get(file, url, out, here, headers)
        except ReadError:
            out.flush()
            in_vain = 0 if out.seek(0, os.SEEK_END) > here else in_vain + 1
            if in_vain >= IN_VAIN_MAX:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


def _end(out: BinaryIO, size_bytes: int) -> int:
    """Bytes that are there, ``out`` behind them; none where there are too many."""
    here = out.seek(0, os.SEEK_END)
    if here <= size_bytes:
        return here
    out.truncate(0)
    return out.seek(0)


def _get(file: HubFile, url: str, out: BinaryIO, here: int, headers: dict[str, str]) -> None:
    from huggingface_hub.file_download import http_get

    http_get(
        url,
        out,
        resume_size=here,
        headers=headers,
        expected_size=file.size_bytes,
        displayed_filename=file.name,
    )
    out.flush()


def _digest(content: BinaryIO, file: HubFile) -> str:
    """Of all bytes: SHA-256, or git's SHA-1 of a blob, whichever the file is listed by."""
    content.seek(0)
    of_git = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    said = of_git if len(file.digest) == 40 else hashlib.sha256()
    while part := content.read(READ_BYTES):
        said.update(part)
    return said.hexdigest()
