"""Single files of buckets and of the web, copied to this machine in bounded memory: one way for every kind of place.

What has come of a file stays beside its place under the tag of these very bytes, and a later try, of another process
too, goes on from there. A file that changes while it is read is begun anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx
from blake3 import blake3

from rollout.common.atomic_files import fsync_folder
from rollout.errors import StoreError
from rollout.objects.filesystem import CHUNK_BYTES, fail_on_disk
from rollout.objects.places import BucketRemote
from rollout.objects.retry import (
    Absent,
    Operation,
    Patience,
    Refused,
    TransferPace,
    Transient,
    persist,
)

RANGE_BYTES = 64 << 20
"""A request asks for so many bytes at most."""
CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
REDIRECTS_MAX = 5
MESSAGE_CHARACTERS_MAX = 200
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
GONE = frozenset({404, 410})


@dataclass(frozen=True, slots=True, kw_only=True)
class FarState:
    """A file as it is now. An empty ``tag``: the place cannot tell two states of it apart."""

    size_bytes: int
    tag: str


class FarFile(Protocol):
    """One file. Raises Transient, Refused or Absent (``rollout.objects.retry``); every call tries once."""

    @property
    def place(self) -> str:
        """Where it is, for messages; never a secret."""
        ...

    def look(self) -> FarState:
        """Its size and tag now."""
        ...

    def read(self, state: FarState, start: int) -> AbstractContextManager[Iterator[bytes]]:
        """Bytes of this very state from ``start`` as they arrive; may end early."""
        ...


class BucketFile:
    """A file of a bucket."""

    def __init__(self, remote: BucketRemote, key: str) -> None:
        self._remote, self._key = remote, key

    @property
    def place(self) -> str:
        """The bucket's place and the key."""
        return f"{self._remote.place}/{self._key}"

    def look(self) -> FarState:
        """Its size and tag now."""
        found = self._remote.look(self._key)
        return FarState(size_bytes=found.size_bytes, tag=found.tag)

    def read(self, state: FarState, start: int) -> AbstractContextManager[Iterator[bytes]]:
        """Bytes from ``start``; that they are of this state is seen by a look at the end."""
        stop = min(start + RANGE_BYTES, state.size_bytes)
        return self._remote.read(self._key, start, stop)


class WebFile:
    """A file at ``https://``. No redirect leaves https, and nothing is unpacked on the way."""

    def __init__(self, url: str, client: httpx.Client | None = None) -> None:
        self._url = url
        limit = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        self._client = client or httpx.Client(timeout=limit)

    @property
    def place(self) -> str:
        """The address without its query, which may be a secret."""
        return urlsplit(self._url)._replace(query="", fragment="").geturl()

    def look(self) -> FarState:
        """Its size and tag now: a strong ETag, else the time of its change."""
        with self._get({"Range": "bytes=0-0"}) as answer:
            whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
            size = whole if answer.status_code == HTTPStatus.PARTIAL_CONTENT else ""
            size = size or answer.headers.get("Content-Length", "")
            if not size.isdigit():
                raise Refused("the server does not say how many bytes the file has", "use another")
            return FarState(size_bytes=int(size), tag=_web_tag(answer))

    @contextmanager
    def read(self, state: FarState, start: int) -> Iterator[Iterator[bytes]]:
        """Bytes from ``start``; those before are read and left where the server gives whole files only."""
        stop = min(start + RANGE_BYTES, state.size_bytes)
        with self._get({"Range": f"bytes={start}-{stop - 1}"}) as answer:
            if _web_tag(answer) != state.tag:
                raise Transient("the file was changed while it was read")
            partial = answer.status_code == HTTPStatus.PARTIAL_CONTENT
            with transient_httpx():
                yield _skipped(answer.iter_raw(CHUNK_BYTES), 0 if partial else start)

    @contextmanager
    def _get(self, headers: dict[str, str]) -> Iterator[httpx.Response]:
        place, plain = self._url, {"Accept-Encoding": "identity", **headers}
        for _ in range(REDIRECTS_MAX + 1):
            with transient_httpx(), self._client.stream("GET", place, headers=plain) as answer:
                if answer.next_request is None:
                    _check(answer)
                    yield answer
                    return
                place = str(answer.next_request.url)
            if urlsplit(place).scheme != "https":
                raise Refused(
                    "it leads to a place that is not https", "name the file's own address"
                )
        raise Refused(f"it leads on more than {REDIRECTS_MAX} times", "name the file's own address")


def copy_far_file(
    file: FarFile, folder: Path, patience: Patience | None = None
) -> tuple[Path, FarState]:
    """A whole copy of the file in ``folder``, under a name that stands for its place and tag, and what was copied.

    Memory is bounded. Raises StoreError, NoSpace for a full disk; Absent where there is no file.
    """
    operation = Operation(verb="fetch", digest=file.place, place="its place")

    def attempt() -> tuple[Path, FarState]:
        state = file.look()
        name = blake3(f"{file.place}\n{state.tag}\n{state.size_bytes}".encode()).hexdigest()
        path = folder / f"{name}.partial"
        _fill(file, state, path, patience or Patience())
        if file.look() != state:
            raise Transient("the file was changed while it was read")
        return path, state

    try:
        folder.mkdir(parents=True, exist_ok=True)
        return persist(patience or Patience(), operation, attempt)
    except OSError as error:
        fail_on_disk("write", folder, error)


def _fill(file: FarFile, state: FarState, path: Path, patience: Patience) -> None:
    """Append what is missing. Progress is kept in the file itself."""
    with path.open("ab") as target:
        position = target.tell()
        if position > state.size_bytes or (position and not state.tag):
            target.truncate(0)
            position = 0
        while position < state.size_bytes:
            pace, before = TransferPace(patience), position
            with file.read(state, position) as chunks:
                for chunk in chunks:
                    piece = chunk[: state.size_bytes - position]
                    target.write(piece)
                    position += len(piece)
                    pace.add(len(piece), left=state.size_bytes - position)
            if position == before:
                raise Transient("the answer ended before its first byte")


def keep_copy(work: Path, target: Path) -> None:
    """Give a whole copy its place, durably. Raises StoreError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work.chmod(0o444)
        work.replace(target)
        fsync_folder(target.parent)
    except OSError as error:
        fail_on_disk("write", target, error)


def digest_bytes(path: Path) -> str:
    """64 hex digits of the file's blake3, read in bounded memory. Raises StoreError."""
    try:
        return blake3(max_threads=1).update_mmap(path).hexdigest()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def _web_tag(answer: httpx.Response) -> str:
    tag = answer.headers.get("ETag", "")
    strong = "" if tag.startswith("W/") else tag
    return strong or answer.headers.get("Last-Modified", "")


def _skipped(chunks: Iterator[bytes], left: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[left:]
        left = max(0, left - len(chunk))


def _check(answer: httpx.Response) -> None:
    status = answer.status_code
    if answer.is_success:
        return
    if status in GONE:
        raise Absent(f"HTTP {status}")
    if status in AGAIN:
        after = answer.headers.get("Retry-After", "")
        raise Transient(f"HTTP {status}", float(after) if after.isdigit() else 0.0)
    raise Refused(f"HTTP {status}", "see whether the address is right and open to this machine")


@contextmanager
def transient_httpx() -> Iterator[None]:
    """Raise Transient for what a connection came to."""
    try:
        yield
    except httpx.HTTPError as error:
        raise Transient(f"{type(error).__name__}: {error}"[:MESSAGE_CHARACTERS_MAX]) from error
