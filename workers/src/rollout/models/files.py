"""A model on disk: which files belong to it, its content digest, and a cache that is written atomically.

Folders under the cache are named by what they hold and appear complete or not at all: they are made
beside their place and moved there in one rename, so any number of processes may build at once. That a folder
is there proves nothing: a cache is shared, so a folder is used only once its files were read and are those
that it must hold; another is made in its place.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from rollout.errors import ModelNotFound, StoreError

log = logging.getLogger(__name__)

SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Endings of files that define a model; anything else in the folder is no part of it."""

SHARD_INDEX = "model.safetensors.index.json"
"""Names the file of each tensor, where weights are in several."""

SCRATCH_VARIABLE = "ROLLOUT_SCRATCH"
PLACED_VARIABLE = "ROLLOUT_PLACED_MODELS"

MARKER = ".files"
"""Names and digests of a cached folder's files; the last one that is written."""
MARKER_BYTES_MAX = 4 << 20


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


def scratch_dir() -> Path:
    """``$ROLLOUT_SCRATCH``, for what is kept and is no model; the cache, where that may be written."""
    given = os.environ.get(SCRATCH_VARIABLE)
    return Path(given).expanduser() if given else default_cache_dir()


def placed_models() -> Path | None:
    """The hub's cache where another container of the pod has placed the models, which this process only reads."""
    given = os.environ.get(PLACED_VARIABLE)
    return Path(given) if given else None


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
    """Raise ModelNotFound unless ``directory`` holds a configuration and safetensors weights, all that its index names."""
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
    _check_shards(directory, uri)


def _check_shards(directory: Path, uri: str) -> None:
    index = directory / SHARD_INDEX
    if not index.is_file():
        return
    try:
        named = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelNotFound(
            f"model {uri}: {index} is no index of weights ({error!r}); save the model again"
        ) from error
    if missing := sorted(str(one) for one in named if not (directory / str(one)).is_file()):
        raise ModelNotFound(
            f"model {uri}: {len(missing)} of {len(named)} files of weights that {SHARD_INDEX} names are not in"
            f" {directory}, the first is {missing[0][:200]}; download or save the model again"
        )


def build_cached(
    cache_dir: Path,
    name: str,
    build: Callable[[Path], None],
    holds: Callable[[Path], bool] | None = None,
) -> Path:
    """``cache_dir/models/name``, made by ``build(folder)`` where it is not there or not what it must be.

    ``holds`` judges a folder by what is known from elsewhere, such as a digest; without it the folder must
    be as its own marker says, which finds damage and no forgery. Concurrent builders are safe: each makes
    its own copy and the first rename wins. Raises StoreError when the cache cannot be written.
    """
    judge = holds or _is_as_marked
    final = cache_dir / "models" / name
    if _is_good(final, judge):
        return final
    if placed_models() is not None:
        what = "does not hold what it should" if os.path.lexists(final) else "is not there"
        raise StoreError(
            f"model cache: {final} {what}, and this container only reads it; delete the pod, and its container"
            f" `models` makes the folder again"
        )
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _discard(final, judge)
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=final.parent))
    except OSError as error:
        raise StoreError(
            f"model cache {final.parent} cannot be written ({error}); set ROLLOUT_CACHE to a folder "
            f"you may write to"
        ) from error
    try:
        build(work)
        _publish(work, final, judge)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def list_digests(folder: Path) -> dict[str, str] | None:
    """Digests of all files of a cached folder by name; None where there is anything but plain files."""
    entries = sorted(path for path in folder.iterdir() if path.name != MARKER)
    if any(path.is_symlink() or not path.is_file() for path in entries):
        return None
    return {
        path.name: blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest() for path in entries
    }


def _is_as_marked(folder: Path) -> bool:
    try:
        with (folder / MARKER).open("rb") as file:
            marked = json.loads(file.read(MARKER_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return False
    return marked == list_digests(folder)


def _is_good(final: Path, judge: Callable[[Path], bool]) -> bool:
    try:
        return not final.is_symlink() and final.is_dir() and judge(final)
    except OSError:
        return False


def _discard(final: Path, judge: Callable[[Path], bool]) -> None:
    """Move away what stands in a folder's place. Under a lock: another builder's good folder stays."""
    if not final.exists() and not final.is_symlink():
        return
    with final.parent.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_good(final, judge) or not os.path.lexists(final):
            return
        log.warning("model cache folder is not what it must be and is made again path=%s", final)
        aside = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
        final.rename(aside / "refused")
    shutil.rmtree(aside, ignore_errors=True)


def _publish(work: Path, final: Path, judge: Callable[[Path], bool]) -> None:
    (work / MARKER).write_text(json.dumps(list_digests(work)))
    work.chmod(0o755)
    for path in work.iterdir():
        path.chmod(0o444)
    try:
        work.rename(final)
    except OSError as error:
        if not _is_good(final, judge):
            raise StoreError(
                f"model cache: {final} does not hold what it should and could not be replaced"
                f" ({error}); remove it"
            ) from error
