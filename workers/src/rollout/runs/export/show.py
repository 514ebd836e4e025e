"""What a model folder, or a run, is: architecture, numbers, shards, where it comes from, and whether it is whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.errors import SpecError, StoreError
from rollout.models.scoring import is_scorer, read_config
from rollout.runs.export.adapter import ADAPTER_CONFIG
from rollout.runs.export.base import CONFIG
from rollout.runs.export.lineage import Lineage, read_lineage
from rollout.runs.export.verify import find_damage
from rollout.weights.numbers import TensorInfo, read_tensors
from rollout.weights.shards import num_bytes, num_elements

WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A model as it lies in a folder. ``damage`` None: there is no lineage to hold it against; empty: it is whole.

    ``dtypes`` are the number formats of safetensors, most used first; ``architecture`` is what loads it.
    """

    folder: Path
    architecture: str
    form: str
    num_parameters: int
    num_tensors: int
    size_bytes: int
    dtypes: tuple[str, ...]
    files: tuple[str, ...]
    lineage: Lineage | None
    damage: tuple[str, ...] | None


def is_model(folder: Path) -> bool:
    """Whether a folder is one of a model or of an adapter."""
    return any((folder / name).is_file() for name in (CONFIG, ADAPTER_CONFIG))


def show_model(folder: Path) -> Shown:
    """Look at a model's folder, and at every byte of it where it has a lineage. Raises SpecError, StoreError."""
    files = sorted(folder.glob(WEIGHTS))
    if not files:
        raise SpecError(f"{folder} has no {WEIGHTS} weights, so it holds no model")
    infos = [info for path in files for info in read_tensors(path).values()]
    lineage = read_lineage(folder)
    return Shown(
        folder=folder,
        architecture=_architecture(folder),
        form=_form(folder, lineage),
        num_parameters=sum(map(num_elements, infos)),
        num_tensors=len(infos),
        size_bytes=sum(_bytes(info, folder) for info in infos),
        dtypes=_dtypes(infos),
        files=tuple(path.name for path in files),
        lineage=lineage,
        damage=None if lineage is None else tuple(find_damage(folder, lineage)),
    )


def _bytes(info: TensorInfo, folder: Path) -> int:
    try:
        return num_bytes(info)
    except KeyError:
        raise StoreError(
            f"{folder}: {info.name} has numbers of an unknown format {info.dtype}"
        ) from None


def _dtypes(infos: Iterable[TensorInfo]) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for info in infos:
        counts[info.dtype] += num_elements(info)
    return tuple(name for name, _ in counts.most_common())


def _architecture(folder: Path) -> str:
    config = _read(folder / (ADAPTER_CONFIG if (folder / ADAPTER_CONFIG).is_file() else CONFIG))
    if "peft_type" in config:
        return f"{config['peft_type']} of rank {config.get('r')} for {config.get('base_model_name_or_path')}"
    return ", ".join(map(str, config.get("architectures") or ["unknown"]))


def _form(folder: Path, lineage: Lineage | None) -> str:
    if (folder / ADAPTER_CONFIG).is_file():
        return "adapter"
    scores = is_scorer(read_config(folder))
    form = "full" if lineage is None else lineage.form
    return f"{form}, a reward model" if scores else form


def _read(path: Path) -> dict[str, Any]:
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    if not isinstance(config.get("architectures") or [], list):
        raise SpecError(
            f"{path}: architectures: expected a list, got {config['architectures']!r:.80}"
        )
    return config
