"""Objects beyond a network: one store for every kind of place, with a verified folder in front of it.

A place (``Remote``: a bucket, the coordinator) moves bytes by key and tells what went wrong; trying
again, resuming in the middle, verifying and caching are done here, once. Bytes reach a reader only
after their blake3 is the object's name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from rollout.errors import ObjectDamaged, ObjectMissing
from rollout.objects.bulk import name_parts
from rollout.objects.cache import Cache, Incoming
from rollout.objects.reading import parse_name
from rollout.objects.retry import (
    Absent,
    Operation,
    Patience,
    Refused,
    TransferPace,
    Transient,
    persist,
)
from rollout.objects.source import FileSource, PartsSource, Source

log = logging.getLogger(__name__)

KIND, NAME_CHARACTERS = "blake3", 64
"""What the keys of objects begin with, and how long their names are."""
RANGE_BYTES = 32 << 20
"""A download is cut into ranges of this size, each resumed by itself."""
RANGES_AT_ONCE = 4
FETCHES_MAX = 3
"""How often a whole object is fetched while what arrives is not what its name says."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A place in a bucket. ``prefix`` has no slash at its ends; ``endpoint`` None is the cloud's own.

    ``kms_key``: the key that encrypts what is written; None: what the bucket says.
    """

    scheme: str
    name: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None
    kms_key: str | None = None

    @property
    def place(self) -> str:
        """Its URI, with the server where it is not the cloud's own; for messages."""
        where = f" at {self.endpoint}" if self.endpoint else ""
        return f"{self.scheme}://{self.name}/{self.prefix}{where}"


def require_encrypted(
    bucket: Bucket, *, is_encrypted: bool, remove: Callable[[], None] | None = None
) -> None:
    """Raise Refused where a server does not say that it has used the key that was named: it may know of none.

    ``remove`` takes away what it has kept in the plain.
    """
    if bucket.kms_key is not None and not is_encrypted:
        if remove is not None:
            remove()
        raise Refused(
            f"{bucket.place} does not encrypt by the key that is named",
            "name a server that does (spec.storage.kmsKey), or leave the key out",
        )


class Remote(Protocol):
    """A place that keeps bytes by key. Thread-safe; every call has a time limit and tries once.

    Raises Transient, Refused or Absent (``rollout.objects.retry``).
    """

    @property
    def place(self) -> str:
        """Where it is, for messages; never a secret."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes of the object, None when it is not there."""
        ...

    def read(self, key: str, start: int, stop: int) -> AbstractContextManager[Iterator[bytes]]:
        """Bytes ``[start, stop)`` as they arrive; may end early."""
        ...

    def write(self, key: str, source: Source) -> None:
        """Store whole, or nothing visible; an object that is there already is left as it is."""
        ...

    def delete(self, key: str) -> None:
        """Remove; a no-op when it is not there."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """The keys of all objects that begin with ``prefix``. Refused where the place does not list."""
        ...


class RemoteStore:
    """The object store of a place. Thread-safe; processes of one machine may share a cache folder."""

    def __init__(self, remote: Remote, cache: Cache, patience: Patience | None = None) -> None:
        self._remote = remote
        self._cache = cache
        self._patience = patience or Patience()
        self._fetching = threading.Lock()

    def put(self, data: bytes) -> str:
        """Store bytes; returns their digest. Raises StoreError."""
        return self.put_parts((data,))

    def put_parts(self, parts: Sequence[bytes | memoryview]) -> str:
        """Store parts as one object, without joining them in memory. Raises StoreError."""
        return self.keep(name_parts(parts), parts)

    def keep(self, digest: str, parts: Sequence[bytes | memoryview]) -> str:
        """As ``put_parts``, for who has hashed the parts: they are not hashed again. Raises StoreError."""
        self._upload(digest, PartsSource(parts))
        self._cache.offer(digest, parts)
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file's bytes; returns their digest. The file stays. Raises StoreError.

        What is uploaded is the cache's own copy: nobody changes it meanwhile.
        """
        digest, copied = self._cache.copy(path)
        self._upload(digest, FileSource(copied))
        return digest

    def path(self, digest: str) -> Path:
        """The object's verified file in the cache. Raises StoreError when missing or damaged."""
        found = self._cache.find(digest)
        if found is not None:
            return found
        with self._fetching:
            return self._cache.find(digest) or self._fetch(digest)

    def locate(self, digest: str) -> Path:
        """The same: what comes from far away is verified as it comes. Raises StoreError."""
        return self.path(digest)

    def has(self, digest: str) -> bool:
        """Whether the place has the object now. Raises StoreError when it cannot be asked."""
        return self._size(digest) is not None

    def size(self, digest: str) -> int:
        """Bytes of the object. Raises StoreError when it is missing."""
        size = self._size(digest)
        if size is None:
            raise self._missing(digest)
        return size

    def delete(self, digest: str) -> None:
        """Remove the object, here and there; a no-op when it is not there. Raises StoreError."""
        self._try("delete", digest, self._remote.delete)
        self._cache.drop(digest)

    def names(self) -> list[str]:
        """Every object of the place. Raises StoreError."""
        operation = Operation(verb="list", digest="of all objects", place=self._remote.place)
        keys = persist(self._patience, operation, lambda: self._remote.keys(f"{KIND}/"))
        names = (key.rpartition("/")[2] for key in keys)
        return [f"{KIND}:{name}" for name in names if len(name) == NAME_CHARACTERS]

    def _size(self, digest: str) -> int | None:
        return self._try("find", digest, self._remote.size)

    def _upload(self, digest: str, source: Source) -> None:
        """Upload unless it is there. A try whose answer was lost is settled by asking for the object."""

        def attempt(key: str) -> None:
            if self._stands(key, source.size_bytes):
                return
            try:
                self._remote.write(key, source)
            except Transient as error:
                if not self._stands(key, source.size_bytes):
                    raise
                log.info("upload settled by a look object=%s trouble=%s", digest, error)

        self._try("store", digest, attempt)

    def _stands(self, key: str, size_bytes: int) -> bool:
        found = self._remote.size(key)
        if found not in {None, size_bytes}:
            raise ObjectDamaged(
                f"object {key} in {self._remote.place} has {found} bytes, expected {size_bytes}:"
                " it is damaged; delete it there, and the run stores it again"
            )
        return found is not None

    def _fetch(self, digest: str) -> Path:
        size_bytes = self.size(digest)
        actual = ""
        for _ in range(FETCHES_MAX):
            with self._cache.receive(digest, size_bytes) as incoming:
                self._download(digest, incoming, size_bytes)
                actual = incoming.commit(digest)
            if actual == digest:
                return self._cache.path(digest)
            log.warning("wrong bytes object=%s got=%s", digest, actual)
        raise ObjectDamaged(
            f"object {digest} in {self._remote.place} is damaged: fetched {FETCHES_MAX} times, its bytes"
            f" hash to {actual}; delete it there, and the run makes it again from its last anchor"
        )

    def _download(self, digest: str, incoming: Incoming, size_bytes: int) -> None:
        ranges = [
            (start, min(start + RANGE_BYTES, size_bytes))
            for start in range(0, size_bytes, RANGE_BYTES)
        ]
        if len(ranges) == 1:
            self._fill(digest, incoming, ranges[0])
            return
        with ThreadPoolExecutor(max_workers=RANGES_AT_ONCE) as pool:
            for done in [pool.submit(self._fill, digest, incoming, part) for part in ranges]:
                done.result()

    def _fill(self, digest: str, incoming: Incoming, part: tuple[int, int]) -> None:
        """One range, gone on with where a broken answer ended."""
        position, stop = part

        def attempt(key: str) -> None:
            nonlocal position
            pace = TransferPace(self._patience)
            with self._remote.read(key, position, stop) as chunks:
                for chunk in chunks:
                    piece = chunk[: stop - position]
                    incoming.write_at(position, piece)
                    position += len(piece)
                    pace.add(len(piece), left=stop - position)
            if position < stop:
                raise Transient(f"the answer ended {stop - position} bytes early")

        self._try("read", digest, attempt)

    def _try(self, verb: str, digest: str, attempt: Callable[[str], T]) -> T:
        operation = Operation(verb=verb, digest=digest, place=self._remote.place)
        try:
            return persist(self._patience, operation, partial(attempt, key_of(digest)))
        except Absent as error:
            raise self._missing(digest) from error

    def _missing(self, digest: str) -> ObjectMissing:
        return ObjectMissing(
            f"object {digest} is not in {self._remote.place}: it was deleted, or never stored; resume"
            " the run from an anchor whose objects are there"
        )


def key_of(digest: str) -> str:
    """The object's key below the root of its place. Raises StoreError for what is no digest."""
    name = parse_name(digest)
    return f"{KIND}/{name[:2]}/{name}"
