"""What a run needs of this machine: its manifest with every local path leading into one folder, and that folder's files.

Only what the manifest names is sent: data, models and code that lie here. What a run would write here is refused by name.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout.runs.prepare import base_folder, local_paths, place_paths

MANIFEST = "run.yaml"
FILES_MAX = 20_000
CHUNK = 1 << 20
LEFT_OUT = frozenset(
    {".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
)
"""Folders of these names are no part of anybody's code or data."""
SECRETS = ("HF_TOKEN", "HF_ENDPOINT", "HUGGING_FACE_HUB_TOKEN")
"""Given to a run that takes something of a hub."""
TRACKER_SECRETS = {
    "wandb": ("WANDB_API_KEY", "WANDB_BASE_URL"),
    "mlflow": ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFile:
    """One file: where it lies in the folder at the host, and where here; ``text`` in place of a file here."""

    path: str
    source: Path
    digest: str
    size: int
    is_program: bool = False
    text: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A folder's files. ``name`` is of what they are: another content has another name."""

    name: str
    files: tuple[SentFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all of them, each content once."""
        return sum({one.digest: one.size for one in self.files}.values())


def pack_run(document: Document) -> Parcel:
    """A run's manifest, and what it names that lies here. Raises SpecError for what is not there or cannot be sent."""
    folder = base_folder(document.source)
    data = copy.deepcopy(document.data)
    spec = data.get("spec") or {}
    place_paths(spec, folder)
    _refuse_what_stays(spec)
    found: list[SentFile] = []
    for number, (field, mapping, key) in enumerate(local_paths(spec)):
        given = str(mapping[key])
        root = f"files/{number}"
        mapping[key], sent = _take(field, given, root)
        found += sent
        if len(found) > FILES_MAX:
            raise _too_many(field, given)
    text = json.dumps(data, indent=1).encode()
    found.append(_of_text(MANIFEST, text))
    return parcel_of(found)


def parcel_of(files: list[SentFile]) -> Parcel:
    """A parcel, named by paths and contents."""
    rows = sorted((one.path, one.digest, one.is_program) for one in files)
    named = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:32]
    return Parcel(name=named, files=tuple(files))


def needed_secrets(document: Document) -> tuple[str, ...]:
    """Names of the environment's variables that this run may be given: those of what its manifest names, no others."""
    spec = document.data.get("spec") or {}
    text = json.dumps(spec)
    names = SECRETS if "hf://" in text or '"huggingFace"' in text else ()
    for tracker in spec.get("tracking") or ():
        for kind, needed in TRACKER_SECRETS.items():
            names += needed if isinstance(tracker, dict) and kind in tracker else ()
    return tuple(dict.fromkeys(names))


def _refuse_what_stays(spec: MutableMapping[str, Any]) -> None:
    """What this machine would have to have afterwards, or that no path of a folder can name."""
    for kind in ("train", "infer"):
        uri = str(((spec.get(kind) or {}).get("output") or {}).get("uri") or "")
        if uri and (uri.startswith("file://") or "://" not in uri):
            raise SpecError(
                f"spec.{kind}.output.uri: {uri} would be a folder of the host: name a bucket"
                + ("" if kind == "infer" else ", or leave it out and take --bring model")
            )
    storage = str((spec.get("storage") or {}).get("uri") or "")
    if storage.startswith("file://"):
        raise SpecError(
            f"spec.storage.uri: {storage} is a folder of this machine: name a bucket, or leave it out"
        )
    wheel = str(((spec.get("code") or {}).get("wheel") or {}).get("uri") or "")
    if wheel.startswith("file://"):
        raise SpecError(
            f"spec.code.wheel.uri: {wheel} is a file of this machine, which is not sent: use code.path"
        )


def _take(field: str, given: str, root: str) -> tuple[str, list[SentFile]]:
    """How the host's manifest names a path, and the files that it needs for it."""
    prefix = "file://" if given.startswith("file://") else ""
    path = Path(given.removeprefix("file://"))
    if path.is_dir():
        return f"{prefix}{root}", list(_take_folder(field, path, root))
    if path.is_file():
        return f"{prefix}{root}/{path.name}", [_of_file(path, f"{root}/{path.name}")]
    matches = sorted(one for one in path.parent.glob(path.name) if one.is_file())
    if not matches:
        raise SpecError(f"{field}: there is no {path}; write a path from the manifest's folder")
    sent = [_of_file(one, f"{root}/{one.name}") for one in matches]
    return f"{prefix}{root}/{path.name}", sent


def _take_folder(field: str, folder: Path, root: str) -> Iterator[SentFile]:
    count = 0
    for place, folders, names in os.walk(folder, followlinks=True):  # bounded by FILES_MAX
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for name in sorted(names):
            file = Path(place) / name
            if not file.is_file():
                continue
            count += 1
            if count > FILES_MAX:
                raise _too_many(field, folder)
            yield _of_file(file, f"{root}/{file.relative_to(folder).as_posix()}")


def _too_many(field: str, place: object) -> SpecError:
    return SpecError(f"{field}: {place} has more than {FILES_MAX} files; pack them into fewer")


def _of_file(file: Path, path: str) -> SentFile:
    try:
        digest, size = hash_file(file)
        is_program = os.access(file, os.X_OK)
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror or error}") from error
    return SentFile(path=path, source=file, digest=digest, size=size, is_program=is_program)


def _of_text(path: str, text: bytes) -> SentFile:
    digest = hashlib.sha256(text).hexdigest()
    return SentFile(path=path, source=Path(path), digest=digest, size=len(text), text=text)


def hash_file(file: Path) -> tuple[str, int]:
    """SHA-256 and length. Raises OSError."""
    found, size = hashlib.sha256(), 0
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            found.update(chunk)
            size += len(chunk)
    return found.hexdigest(), size
