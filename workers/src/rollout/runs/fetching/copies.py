"""Models and data at ``s3://``, ``gs://`` and ``https://``: copied to this machine before a run looks at them.

Only the process that was started by a person holds credentials, so it fetches; those of the run read the copies
(``rollout.models.fetched``). A copy whose place has not changed is used again, after its bytes were hashed.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from blake3 import blake3

from rollout.errors import (
    DataNotFound,
    ModelNotFound,
    NoSpace,
    PlaceUnreachable,
    RolloutError,
    StoreError,
)
from rollout.models.fetched import (
    BUCKETS,
    Fetched,
    find_fetched,
    pointer_of,
    root_of,
)
from rollout.models.files import SUFFIXES, digest_model
from rollout.objects.far_files import (
    BucketFile,
    FarFile,
    WebFile,
    copy_far_file,
    digest_bytes,
    keep_copy,
)
from rollout.objects.filesystem import fail_on_disk, write_atomically
from rollout.objects.places import BucketRemote, open_bucket, parse_bucket
from rollout.objects.retry import Absent, Operation, Patience, Transient, persist
from rollout_api.v1alpha1.storage import Storage

FILES_AT_ONCE = 4
MODEL_FILES_MAX = 2000
FETCHED_BY_ANOTHER = Patience(tries_max=400, pause_max_seconds=10.0)
"""About an hour."""
EXPORTING = "rollout_exporting.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileOfModel:
    name: str
    tag: str
    file: BucketFile


def fetch_data_file(
    uri: str, digest: str, field: str, cache: Path, storage: Storage | None
) -> Path:
    """A copy of one file. With the ``digest`` of an earlier copy nothing is asked for."""
    with _naming(field, uri, DataNotFound), _locked(uri, cache):
        known = find_fetched(uri, cache)
        if known is not None and not _is_whole(known.path):
            known = None
        if known is not None and digest and known.digest == digest:
            return known.path
        file = _far_file(uri, storage)
        if known is not None and known.tag and known.tag == _look(file):
            return known.path
        work, state = copy_far_file(file, root_of(cache) / "partial")
        target = root_of(cache) / "files" / digest_bytes(work) / _name_of(uri)
        keep_copy(work, target)
        _point(Fetched(uri=uri, tag=state.tag, digest=digest, path=target), cache)
    return target


def fetch_model_folder(uri: str, field: str, cache: Path, storage: Storage | None) -> Path:
    """A copy of a model's folder: the files directly below the prefix that define a model."""
    with _naming(field, uri, ModelNotFound), _locked(uri, cache):
        files = _list_model(uri, storage)
        tag = blake3("\n".join(f"{one.name} {one.tag}" for one in files).encode()).hexdigest()
        known = find_fetched(uri, cache)
        if known is not None and known.tag == tag and digest_model(known.path) == _named(known):
            return known.path
        folder = _assemble(files, cache)
        _point(Fetched(uri=uri, tag=tag, digest="", path=folder), cache)
    return folder


@contextmanager
def _naming(field: str, uri: str, kind: type[RolloutError]) -> Iterator[None]:
    """Say the field of what cannot be had."""
    place = urlsplit(uri)._replace(query="", fragment="").geturl()
    try:
        yield
    except Absent as error:
        raise kind(f"{field}: there is no {place} ({error})") from error
    except kind as error:
        raise kind(f"{field}: {place}: {error}") from error
    except NoSpace:
        raise
    except StoreError as error:
        raise PlaceUnreachable(f"{field}: {error}") from error


@contextmanager
def _locked(uri: str, cache: Path) -> Iterator[None]:
    """One process fetches; others wait, and find its copy. Raises StoreError."""
    path = pointer_of(uri, cache).with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        fail_on_disk("write", path, error)
    with file:
        operation = Operation(verb="fetch", digest=path.name, place=str(path.parent))
        persist(FETCHED_BY_ANOTHER, operation, lambda: _lock(file.fileno()))
        yield


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Transient("another process of this machine fetches it") from None


def _assemble(files: list[_FileOfModel], cache: Path) -> Path:
    """The files in a folder that is named by its digest and appears whole."""
    root = root_of(cache)
    copy = partial(copy_far_file, folder=root / "partial")
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        copies = list(pool.map(lambda one: copy(one.file)[0], files))
    (root / "models").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / "models", prefix=".fetching-") as name:
        work = Path(name) / "model"
        for one, copied in zip(files, copies, strict=True):
            keep_copy(copied, work / one.name)
        final = root / "models" / digest_model(work).removeprefix("blake3:")
        if final.is_dir() and digest_model(final) != f"blake3:{final.name}":
            shutil.rmtree(final)
        if not final.is_dir():
            work.rename(final)
    return final


def _list_model(uri: str, storage: Storage | None) -> list[_FileOfModel]:
    remote = _open(uri, storage)
    operation = Operation(verb="list", digest=uri, place=remote.place)
    names = sorted(persist(Patience(), operation, lambda: remote.keys("")))
    own = [name for name in names if "/" not in name and Path(name).suffix in SUFFIXES]
    if EXPORTING in names:
        raise ModelNotFound(f"an export to it has not ended ({EXPORTING}); repeat that export")
    if "config.json" not in own or len(own) > MODEL_FILES_MAX:
        raise ModelNotFound(
            f"expected a model's folder with config.json and at most {MODEL_FILES_MAX} files, got"
            f" {len(own)}: {', '.join(own[:5]) or 'none'}"
        )
    files = [BucketFile(remote, name) for name in own]
    return [
        _FileOfModel(name=name, tag=_look(file), file=file)
        for name, file in zip(own, files, strict=True)
    ]


def _look(file: FarFile) -> str:
    operation = Operation(verb="find", digest=file.place, place="its place")
    return persist(Patience(), operation, file.look).tag


def _far_file(uri: str, storage: Storage | None) -> FarFile:
    if urlsplit(uri).scheme not in BUCKETS:
        return WebFile(uri)
    folder, _, key = uri.rpartition("/")
    if urlsplit(uri).path.strip("/") == "" or not key or "*" in key:
        raise DataNotFound("expected one file, as s3://bucket/folder/rows.jsonl")
    return BucketFile(_open(folder, storage), key)


def _open(uri: str, storage: Storage | None) -> BucketRemote:
    """Objects' own server serves models and data of its kind of bucket, too."""
    own = (
        storage if storage and (storage.uri or "").startswith(f"{urlsplit(uri).scheme}:") else None
    )
    bucket = parse_bucket(
        uri, endpoint=own.endpoint if own else None, region=own.region if own else None
    )
    return open_bucket(bucket)


def _name_of(uri: str) -> str:
    """The file's own name, by which its packing is told."""
    name = PurePosixPath(unquote(urlsplit(uri).path)).name
    plain = "".join(one for one in name if one.isalnum() or one in "._-")
    return plain.lstrip(".")[-100:] or "file"


def _is_whole(path: Path) -> bool:
    return path.is_file() and digest_bytes(path) == path.parent.name


def _named(known: Fetched) -> str:
    return f"blake3:{known.path.name}"


def _point(copy: Fetched, cache: Path) -> None:
    place = pointer_of(copy.uri, cache)
    place.parent.mkdir(parents=True, exist_ok=True)
    path = copy.path.relative_to(root_of(cache)).as_posix()
    said = {"tag": copy.tag, "digest": copy.digest, "path": path}
    write_atomically(place, json.dumps(said).encode())
