"""Plain files under a prefix of a bucket: what others read by name, where objects are read by digest.

A file appears whole; one of its name and size that is there is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rollout.errors import PlaceUnreachable, SpecError, StoreError
from rollout.objects.places import is_bucket, open_bucket, parse_bucket
from rollout.objects.remote import Remote
from rollout.objects.retry import Operation, Patience, persist
from rollout.objects.source import FileSource, PartsSource, Source

PROBE_TRIES_MAX = 3
T = TypeVar("T")


def is_bucket_place(uri: str) -> bool:
    """Whether a place is no folder. Raises SpecError for a kind of bucket that is not written to."""
    if "://" not in uri:
        return False
    if not is_bucket(uri):
        raise SpecError(
            f"{uri}: expected a folder on this machine, s3://bucket/prefix or gs://bucket/prefix"
        )
    return True


class BucketFiles:
    """The files below one prefix. Raises StoreError when the place fails for longer than its patience."""

    def __init__(self, remote: Remote, patience: Patience | None = None) -> None:
        self._remote = remote
        self._patience = patience or Patience()

    @property
    def place(self) -> str:
        """Where they are, for messages."""
        return self._remote.place

    def require(self) -> None:
        """Raise PlaceUnreachable where nothing can be written now."""
        name = f".rollout-probe-{os.getpid()}"

        def probe() -> None:
            self._remote.write(name, PartsSource([b"rollout"]))
            self._remote.delete(name)

        patience = Patience(tries_max=PROBE_TRIES_MAX)
        operation = Operation(verb="try to write", digest=name, place=self.place)
        try:
            persist(patience, operation, probe)
        except StoreError as error:
            raise PlaceUnreachable(str(error)) from error

    def names(self) -> list[str]:
        """All of them; the prefix is taken as a folder."""
        return self._persist("list", "", lambda: self._remote.keys(""))

    def read(self, name: str, size_max: int) -> bytes | None:
        """A small file; None where there is none. Raises StoreError for one that is larger."""

        def read() -> bytes | None:
            size = self._remote.size(name)
            if size is None or size > size_max:
                return None if size is None else bytes(size_max + 1)
            with self._remote.read(name, 0, size) as chunks:
                return b"".join(chunks)

        found = self._persist("read", name, read)
        if found is not None and len(found) > size_max:
            raise StoreError(f"{self.place}: {name} has more than {size_max:,} bytes")
        return found

    def write(self, name: str, source: Path | bytes) -> None:
        """Store a file whole. Raises StoreError where another one has the name."""
        data: Source = PartsSource([source]) if isinstance(source, bytes) else FileSource(source)
        self._persist("write", name, lambda: self._remote.write(name, data))
        found = self._persist("look at", name, lambda: self._remote.size(name))
        if found != data.size_bytes:
            raise StoreError(
                f"{self.place}: {name} has {found} bytes, expected {data.size_bytes}: somebody else"
                " writes there; name another place"
            )

    def delete(self, name: str) -> None:
        """Remove a file; a no-op when it is not there."""
        self._persist("delete", name, lambda: self._remote.delete(name))

    def _persist(self, verb: str, name: str, attempt: Callable[[], T]) -> T:
        operation = Operation(verb=verb, digest=name, place=self.place)
        return persist(self._patience, operation, attempt)


def open_bucket_files(
    uri: str, *, endpoint: str | None, region: str | None, kms_key: str | None = None
) -> BucketFiles:
    """The files below ``s3://bucket/prefix`` or ``gs://bucket/prefix``. Raises SpecError."""
    bucket = parse_bucket(uri, endpoint=endpoint, region=region, kms_key=kms_key)
    if not bucket.prefix:
        raise SpecError(
            f"{uri}: expected a prefix after the bucket, such as {uri.rstrip('/')}/model"
        )
    return BucketFiles(open_bucket(bucket))
