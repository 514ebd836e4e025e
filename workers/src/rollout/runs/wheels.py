"""A user's wheel, fetched and unpacked: on the import path, and without its dependencies."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
from blake3 import blake3

from rollout.errors import PlaceUnreachable, SpecError
from rollout.objects.places import is_bucket, read_file
from rollout_api.v1alpha1.storage import CodeWheel, Storage

FIELD = "spec.code.wheel"
BYTES_MAX = 256 << 20
CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
REDIRECTS_MAX = 5
_HASHES = {"blake3": blake3, "sha256": hashlib.sha256}


def place_wheel(wheel: CodeWheel, folder: Path, storage: Storage | None = None) -> str:
    """Put the wheel's content into ``folder``; its ``blake3:`` digest. What was in the folder goes.

    ``storage`` says which S3 server is meant. Raises SpecError for a wheel that is none, is too large, has no
    digest or is not the one of its digest (blake3 or sha256); PlaceUnreachable where it cannot be fetched now.
    """
    uri = wheel.uri
    folder.parent.mkdir(parents=True, exist_ok=True)
    fetched = folder.with_name(f".{folder.name}.whl")
    try:
        _fetch(uri, fetched, storage or Storage())
        actual = _check(uri, fetched, wheel.digest)
        _unpack(uri, fetched, folder)
    finally:
        fetched.unlink(missing_ok=True)
    return actual


def _fetch(uri: str, target: Path, storage: Storage) -> None:
    size = 0
    with target.open("wb") as file:
        for chunk in _read(uri, storage):
            size += len(chunk)
            if size > BYTES_MAX:
                raise SpecError(f"{FIELD}.uri: {uri} has more than {BYTES_MAX >> 20} MiB")
            file.write(chunk)


def _read(uri: str, storage: Storage) -> Iterator[bytes]:
    scheme = urlsplit(uri).scheme
    if scheme == "https":
        yield from _read_web(uri)
    elif is_bucket(uri):
        yield _read_bucket(uri, storage)
    elif scheme == "file":
        yield _read_file(uri)
    else:
        raise SpecError(f"{FIELD}.uri: expected https://, s3://, gs:// or file://, got {uri}")


def _read_web(uri: str) -> Iterator[bytes]:
    """The body as it is sent: nothing is unpacked, and no redirect leaves https."""
    limit = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    place = uri
    try:
        with httpx.Client(timeout=limit, headers={"Accept-Encoding": "identity"}) as client:
            for _ in range(REDIRECTS_MAX + 1):
                with client.stream("GET", place) as answer:
                    if answer.next_request is None:
                        yield from _read_answer(uri, answer)
                        return
                    place = str(answer.next_request.url)
                if urlsplit(place).scheme != "https":
                    raise SpecError(f"{FIELD}.uri: {uri} leads to {place}; expected https://")
    except httpx.HTTPError as error:
        raise PlaceUnreachable(f"{FIELD}.uri: {uri}: {type(error).__name__}: {error}") from error
    raise SpecError(f"{FIELD}.uri: {uri} leads on more than {REDIRECTS_MAX} times")


def _read_answer(uri: str, answer: httpx.Response) -> Iterator[bytes]:
    if answer.is_client_error:
        raise SpecError(f"{FIELD}.uri: {uri}: HTTP {answer.status_code}")
    answer.raise_for_status()
    yield from answer.iter_raw()


def _read_bucket(uri: str, storage: Storage) -> bytes:
    found = read_file(
        uri, endpoint=storage.endpoint, region=storage.region, size_bytes_max=BYTES_MAX
    )
    if found is None:
        raise SpecError(f"{FIELD}.uri: there is no {uri}")
    return found


def _read_file(uri: str) -> bytes:
    try:
        return Path(unquote(urlsplit(uri).path)).read_bytes()
    except OSError as error:
        raise SpecError(f"{FIELD}.uri: {uri}: {error}") from error


def _check(uri: str, fetched: Path, digest: str | None) -> str:
    data = fetched.read_bytes()
    name, _, wanted = (digest or "").partition(":")
    if digest is None:
        met = f"blake3:{blake3(data).hexdigest()}"
        raise SpecError(f"{FIELD}.digest: {uri} needs one, so that it stays this file; it is {met}")
    if name not in _HASHES:
        raise SpecError(f"{FIELD}.digest: expected blake3:... or sha256:..., got {digest}")
    found = _HASHES[name](data).hexdigest()
    if found != wanted:
        raise SpecError(f"{FIELD}.digest: {uri} is {name}:{found}, expected {digest}")
    return f"blake3:{blake3(data).hexdigest()}"


def _unpack(uri: str, fetched: Path, folder: Path) -> None:
    work = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    try:
        with zipfile.ZipFile(fetched) as wheel:
            if not wheel.infolist():
                raise SpecError(f"{FIELD}.uri: {uri} holds no file")
            if sum(item.file_size for item in wheel.infolist()) > 4 * BYTES_MAX:
                raise SpecError(f"{FIELD}.uri: {uri} unpacks to more than {BYTES_MAX >> 18} MiB")
            wheel.extractall(work)
    except zipfile.BadZipFile as error:
        raise SpecError(f"{FIELD}.uri: {uri} is no wheel: {error}") from error
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)
