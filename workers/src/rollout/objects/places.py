"""The schemes of places, once: what a URI names, and which code reaches it.

``file:///folder``, ``s3://bucket/prefix``, ``gs://bucket/prefix``. A client library is loaded when a place of its kind
is opened; none is asked for anything here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from rollout.errors import PlaceUnreachable, SpecError, StoreError
from rollout.objects.filesystem import discard, make_folder, write_atomically
from rollout.objects.named.bucket import BucketObjects, NamedRemote
from rollout.objects.named.contract import NamedObjects
from rollout.objects.named.folder import FolderObjects
from rollout.objects.remote import Bucket, Remote
from rollout.objects.retry import Absent, Operation, Patience, Refused, persist
from rollout.objects.source import PartsSource

FOLDER = "file"
EXPECTED = "expected s3://bucket/prefix, gs://bucket/prefix or file:///folder"
PROBE_TRIES_MAX = 3
PROBE = b"rollout"


class BucketRemote(Remote, NamedRemote, Protocol):
    """One prefix of a bucket: objects by digest, plain files and named objects."""

    def find_hold(self, key: str) -> str:
        """Why the bytes of an object stay when it is deleted, in words; empty where they go. Raises Absent."""
        ...


def _open_s3(bucket: Bucket, patience: Patience | None) -> BucketRemote:
    from rollout.objects.s3 import S3Remote

    return S3Remote(bucket, patience)


def _open_gcs(bucket: Bucket, patience: Patience | None) -> BucketRemote:
    from rollout.objects.gcs import GcsRemote

    return GcsRemote(bucket, patience)


BUCKETS: Mapping[str, Callable[[Bucket, Patience | None], BucketRemote]] = {
    "s3": _open_s3,
    "gs": _open_gcs,
}
"""How each kind of bucket is reached."""


def is_bucket(uri: str) -> bool:
    """Whether a URI names a bucket of a kind that is reached."""
    return urlsplit(uri).scheme in BUCKETS


def parse_folder(uri: str) -> Path | None:
    """The folder of ``file:///folder``; None for what is no such URI."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == FOLDER else None


def parse_bucket(
    uri: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    kms_key: str | None = None,
) -> Bucket:
    """``scheme://bucket/prefix``. Raises SpecError."""
    parts = urlsplit(uri)
    if parts.scheme not in BUCKETS or not parts.netloc:
        raise SpecError(f"{uri}: {EXPECTED}")
    return Bucket(
        scheme=parts.scheme,
        name=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=endpoint,
        region=region,
        kms_key=kms_key,
    )


def open_bucket(bucket: Bucket, patience: Patience | None = None) -> BucketRemote:
    """A client of the bucket. Raises SpecError where none can be made."""
    return BUCKETS[bucket.scheme](bucket, patience)


def open_named(
    uri: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    kms_key: str | None = None,
    patience: Patience | None = None,
) -> NamedObjects:
    """The named objects below ``uri``. Raises SpecError for a place that is not known."""
    folder = parse_folder(uri)
    if folder is not None:
        return FolderObjects(folder)
    bucket = parse_bucket(uri, endpoint=endpoint, region=region, kms_key=kms_key)
    return BucketObjects(open_bucket(bucket, patience), patience)


def require_bucket(bucket: Bucket) -> str:
    """Do to the bucket what a run does to it; what its owner should know, empty where that is nothing.

    Raises PlaceUnreachable, with the call that is refused and the fix.
    """
    remote = open_bucket(bucket)
    held: list[str] = []
    for step in probe_steps(remote, held):
        operation = Operation(verb=f"try to {step.verb}", digest=step.key, place=remote.place)
        try:
            persist(Patience(tries_max=PROBE_TRIES_MAX), operation, step.call)
        except (StoreError, Absent) as error:
            raise PlaceUnreachable(
                f"spec.storage: {error} (a run looks for, writes, reads, lists and deletes objects there)"
            ) from error
    return f"{remote.place}: {held[-1]}" if held[-1] else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStep:
    """One thing that a run does to its bucket. ``call`` tries once (``rollout.objects.retry``)."""

    verb: str
    key: str
    call: Callable[[], object]


def probe_steps(remote: BucketRemote, held: list[str]) -> tuple[ProbeStep, ...]:
    """What a run does to its bucket, done to an object of its own, in order; the last step removes it.

    ``held`` takes why its bytes stay when it is deleted, empty where they go.
    """
    name = f"probe/{os.getpid()}-{os.urandom(8).hex()}"
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("look for", lambda: remote.size(f"{name}-none")),
        ("write", lambda: remote.write(name, PartsSource([PROBE]))),
        ("read", lambda: _read_probe(remote, name)),
        ("list", lambda: remote.keys(name)),
        ("ask about", lambda: held.append(remote.find_hold(name))),
        ("delete", lambda: remote.delete(name)),
    )
    return tuple(ProbeStep(verb=verb, key=name, call=call) for verb, call in steps)


def _read_probe(remote: BucketRemote, name: str) -> None:
    with remote.read(name, 0, len(PROBE)) as chunks:
        found = b"".join(chunks)
    if found != PROBE:
        raise Refused(f"{len(found)} bytes that nobody wrote", "see what stands before the bucket")


def require_folder(folder: Path) -> None:
    """Raise PlaceUnreachable, with the fix, where nothing can be written into the folder now."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        make_folder(folder)
        write_atomically(probe, PROBE)
    except StoreError as error:
        raise PlaceUnreachable(f"spec.storage: {error}") from error
    discard(probe)


def read_file(
    uri: str, *, endpoint: str | None, region: str | None, size_bytes_max: int
) -> bytes | None:
    """A small file of a bucket; None where there is none. Raises SpecError, and PlaceUnreachable."""
    folder, _, key = uri.rpartition("/")
    remote = open_bucket(parse_bucket(folder, endpoint=endpoint, region=region))

    def read() -> bytes | None:
        size = remote.size(key)
        if size is None or size > size_bytes_max:
            return None if size is None else bytes(size_bytes_max + 1)
        with remote.read(key, 0, size) as chunks:
            return b"".join(chunks)

    try:
        return persist(Patience(), Operation(verb="read", digest=key, place=remote.place), read)
    except StoreError as error:
        raise PlaceUnreachable(f"{uri}: {error}") from error
