"""A model on disk: which files belong to it, its content digest, and a cache that is written atomically.

Folders under the cache are named by what they hold and appear complete or not at all: they are made
beside their place and moved there in one rename, so any number of processes may build at once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from rollout.errors import ModelNotFound, StoreError

SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Endings of files that define a model; anything else in the folder is no part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A resolved model: a local folder and what it holds.

    ``digest`` is ``blake3:<hex>`` over names and bytes of the model's files, equal wherever they lie;
    ``revision`` the commit of an ``hf://`` model, else None.
    """

    uri: str
    path: Path
    digest: str
    revision: str | None = None


def default_cache_dir() -> Path:
    """``$ROLLOUT_CACHE``, or ``~/.cache/rollout``."""
    given = os.environ.get("ROLLOUT_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "rollout"


def digest_model(directory: Path) -> str:
    """``blake3:<hex>`` over name and content of every model file directly in ``directory``."""
    root = blake3()
    for path in model_files(directory):
        content = blake3(max_threads=blake3.AUTO).update_mmap(path).digest()
        root.update(f"{path.name}|{path.stat().st_size}|".encode()).update(content)
    return f"blake3:{root.hexdigest()}"


def model_files(directory: Path) -> list[Path]:
    """The files that define the model, by name."""
    return sorted(p for p in directory.iterdir() if p.suffix in SUFFIXES and p.is_file())


def check_model(directory: Path, uri: str) -> None:
    """Raise ModelNotFound unless ``directory`` holds a configuration and safetensors weights."""
    if not directory.is_dir():
        raise ModelNotFound(f"model {uri}: {directory} is not a folder")
    if not (directory / "config.json").is_file():
        raise ModelNotFound(
            f"model {uri}: {directory} has no config.json, so it is not a model folder"
        )
    if not any(directory.glob("*.safetensors")):
        raise ModelNotFound(
            f"model {uri}: {directory} has no *.safetensors weights; "
            f"save the model with save_pretrained() of a current transformers"
        )


def build_cached(cache_dir: Path, name: str, build: Callable[[Path], None]) -> Path:
    """``cache_dir/models/name``, made by ``build(folder)`` if it is not there yet.

    Concurrent builders are safe: each makes its own copy and the first rename wins. Raises StoreError
    when the cache cannot be written.
    """
    final = cache_dir / "models" / name
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=final.parent))
    except OSError as error:
        raise StoreError(
            f"model cache {final.parent} cannot be written ({error}); set ROLLOUT_CACHE to a folder "
            f"you may write to"
        ) from error
    try:
        build(work)
        _publish(work, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def _publish(work: Path, final: Path) -> None:
    work.chmod(0o755)
    for path in work.iterdir():
        path.chmod(0o644)
    try:
        work.rename(final)
    except OSError as error:
        if not final.is_dir():
            raise StoreError(f"model cache: {final} could not be put in place: {error}") from error
