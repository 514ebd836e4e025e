"""From a document as written to a spec in which nothing is left to choose or to look up by place.

Relative paths start at the manifest's folder; presets are filled in; user functions given in memory
take the place of the manifest's rewards. Raises SpecError with the field.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout_api import presets
from rollout_api.fields.model_sources import model_sources
from rollout_api.parse import parse_run
from rollout_api.v1alpha1.run import RolloutRunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run ready to be resolved: its name, its whole spec and the folder paths started at."""

    name: str
    namespace: str
    spec: RolloutRunSpec
    folder: Path


def prepare_run(document: Document, rewards: Sequence[dict[str, Any]] | None = None) -> PreparedRun:
    """Fill presets and make paths absolute; ``rewards`` replace ``train.rewards`` when given."""
    folder = base_folder(document.source)
    data = copy.deepcopy(document.data)
    place_paths(data.get("spec") or {}, folder)
    if rewards:
        data["spec"].setdefault("train", {})["rewards"] = list(rewards)
    try:
        run = parse_run(data)
        spec = presets.resolve(run.spec, engine="embedded").spec
    except ValidationError as error:
        raise SpecError(f"{document.source}: {describe(error)}") from error
    except ValueError as error:
        raise SpecError(f"{document.source}: {error}") from error
    return PreparedRun(
        name=run.metadata.name or "run",
        namespace=run.metadata.namespace or "default",
        spec=spec,
        folder=folder,
    )


def describe(error: ValidationError) -> str:
    """Every problem of a validation, one a line, with its field."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'manifest'}: {one['msg']}" for one in error.errors()
    )


def base_folder(source: str) -> Path:
    """Where relative paths of a manifest start: its folder, or here for standard input."""
    path = Path(source)
    return (path.parent if path.is_file() else Path()).absolute()


def place_paths(spec: dict[str, Any], folder: Path) -> None:
    """Make the relative paths of a spec absolute, in place.

    A data set's ``path`` may also be a name on the hub: it is a path where that folder exists.
    """
    for mapping, key in _path_fields(spec):
        value = mapping.get(key)
        if not isinstance(value, str):
            continue
        if value.startswith("file://"):
            mapping[key] = _place_file_uri(value, folder)
        elif "://" not in value:
            mapping[key] = str(folder / Path(value).expanduser())
    for mapping in _hub_data(spec):
        value = mapping.get("path")
        if isinstance(value, str) and (folder / value).exists():
            mapping["path"] = str(folder / value)


def local_paths(spec: dict[str, Any]) -> Iterator[tuple[str, MutableMapping[str, Any], str]]:
    """What a spec with placed paths reads of this machine: the field's name, the mapping that holds the path, its key.

    Of a service's clients and of what is written nothing is told.
    """
    for field, mapping, key in _read_fields(spec):
        value = mapping.get(key)
        if isinstance(value, str) and (value.startswith("file://") or "://" not in value):
            yield field, mapping, key
    for mapping in _hub_data(spec):
        value = mapping.get("path")
        if isinstance(value, str) and Path(value).is_absolute():
            yield "data.huggingFace.path", mapping, "path"


def _place_file_uri(uri: str, folder: Path) -> str:
    path = Path(uri.removeprefix("file://")).expanduser()
    return f"file://{folder / path}"


def _holders(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Every mapping of a spec that may hold ``data`` and ``rewards``."""
    suites = [one.get("suite") or {} for one in spec.get("evaluations") or ()]
    suites += [one.get("suite") or {} for one in (spec.get("evaluate") or {}).get("suites") or ()]
    return [spec.get("train") or {}, spec.get("infer") or {}, *suites]


def _path_fields(spec: dict[str, Any]) -> Iterator[tuple[MutableMapping[str, Any], str]]:
    """Each mapping that may hold a path, and the key it holds it under."""
    for _, mapping, key in _read_fields(spec):
        yield mapping, key
    for kind in ("infer", "train"):
        yield (spec.get(kind) or {}).get("output") or {}, "uri"


def _read_fields(spec: dict[str, Any]) -> Iterator[tuple[str, MutableMapping[str, Any], str]]:
    """Each that a run reads, with the words for its field."""
    for model in model_sources(spec):
        if "://" in str(model.get("uri", "")):
            yield "model.uri", model, "uri"
    for holder in _holders(spec):
        yield "data.jsonl.uri", (holder.get("data") or {}).get("jsonl") or {}, "uri"
        for reward in holder.get("rewards") or ():
            yield "rewards.python.path", reward.get("python") or {}, "path"
    yield "code.path", spec.get("code") or {}, "path"


def _hub_data(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for holder in _holders(spec):
        yield (holder.get("data") or {}).get("huggingFace") or {}
