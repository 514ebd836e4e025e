"""From a model URI to a folder of files, once, at plan time.

``rollout://`` models are built by a recipe into the cache; ``hf://`` models come through the hub's
cache; those of a bucket were fetched before; ``file://`` models are used where they lie. A process of a run never resolves: it reads the path.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from blake3 import blake3

from rollout.errors import ModelNotFound, SpecError
from rollout.models.fetched import BUCKETS, find_fetched
from rollout.models.files import (
    ModelFiles,
    build_cached,
    check_model,
    default_cache_dir,
    digest_model,
)
from rollout.models.hub.fetch import fetch_model
from rollout.models.uri import ModelUri, parse_model_uri

RECIPES = {
    "tiny-qwen2": ("rollout.models.builtin.tiny", "build_qwen2", "canonical_qwen2"),
    "tiny-llama": ("rollout.models.builtin.tiny", "build_llama", "canonical_llama"),
    "tiny-qwen3-moe": (
        "rollout.models.builtin.experts",
        "build_qwen3_moe",
        "canonical_qwen3_moe",
    ),
    "tiny-adder": ("rollout.models.builtin.adder", "build_adder", "canonical_adder"),
    "tiny-agent": ("rollout.models.builtin.agent", "build_agent", "canonical_agent"),
}
"""Built-in models: a module, its builder and the function that fills in its parameters."""


class Recipe(Protocol):
    """Writes a whole model folder (``config.json``, ``model.safetensors``, tokenizer files)."""

    def __call__(self, directory: Path, parameters: Mapping[str, str]) -> None:
        """Build into an existing empty folder. Raises SpecError for a bad parameter."""
        ...


class Canonical(Protocol):
    """Fills in defaults and the recipe's version, so that equal models have equal parameters."""

    def __call__(self, parameters: Mapping[str, str]) -> Mapping[str, str]:
        """The complete parameters. Raises SpecError for a bad one."""
        ...


def resolve_model(
    uri: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
) -> ModelFiles:
    """The model's files on this machine.

    ``cache_dir`` None means ``$ROLLOUT_CACHE`` or ``~/.cache/rollout``. Raises ModelNotFound when the
    model does not exist, is no model folder, or cannot be had offline; StoreError when the cache is unwritable.
    """
    parsed = parse_model_uri(uri)
    if revision is not None and parsed.scheme != "hf":
        raise SpecError(f"model {uri}: revision belongs to hf:// models; remove it")
    commit = None
    if parsed.scheme == "hf":
        path, commit = fetch_model(parsed.name, revision, offline=offline)
    elif parsed.scheme == "file":
        path = Path(parsed.name).expanduser().absolute()
    elif parsed.scheme in BUCKETS:
        path = _find_fetched(str(uri), cache_dir or default_cache_dir())
    else:
        path = _build(parsed, cache_dir or default_cache_dir())
    check_model(path, uri)
    return ModelFiles(uri=str(parsed), path=path, digest=digest_model(path), revision=commit)


def find_model_folder(uri: str) -> Path | None:
    """Where a model's files lie on this machine; None where they do not: nothing is fetched, built or digested.

    Raises SpecError for what is no model URI.
    """
    parsed = parse_model_uri(uri)
    try:
        if parsed.scheme == "hf":
            return fetch_model(parsed.name, None, offline=True)[0]
        if parsed.scheme == "file":
            return Path(parsed.name).expanduser().absolute()
        if parsed.scheme in BUCKETS:
            return _find_fetched(str(uri), default_cache_dir())
        return default_cache_dir() / "models" / _key_of(parsed)
    except ModelNotFound:
        return None


def _find_fetched(uri: str, cache_dir: Path) -> Path:
    """The copy that was fetched when the run was begun; its name is its digest."""
    found = find_fetched(uri, cache_dir)
    if found is None or not found.path.is_dir():
        raise ModelNotFound(
            f"model {uri} is not in this machine's cache {cache_dir}; rollout plan and rollout run fetch it"
        )
    return found.path


def _build(uri: ModelUri, cache_dir: Path) -> Path:
    recipe, _ = _load_recipe(uri)
    return build_cached(
        cache_dir, _key_of(uri), lambda folder: recipe(folder, dict(uri.parameters))
    )


def _key_of(uri: ModelUri) -> str:
    """The name of a built-in model's folder in the cache. Raises ModelNotFound, SpecError."""
    _, canonical = _load_recipe(uri)
    filled = ModelUri(
        scheme=uri.scheme, name=uri.name, parameters=dict(canonical(dict(uri.parameters)))
    )
    return blake3(str(filled).encode()).hexdigest()


def _load_recipe(uri: ModelUri) -> tuple[Recipe, Canonical]:
    if uri.name not in RECIPES:
        raise ModelNotFound(
            f"model {uri}: no such built-in model; there are "
            f"{', '.join(f'rollout://{name}' for name in RECIPES)}"
        )
    module_name, build, canonical = RECIPES[uri.name]
    module = importlib.import_module(module_name)
    return cast("Recipe", getattr(module, build)), cast("Canonical", getattr(module, canonical))
