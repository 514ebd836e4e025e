"""The folder of the model that a run began with: its configuration, its tokenizer and, for an adapter, its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rollout.errors import ModelNotFound
from rollout.models.files import digest_model
from rollout.models.scoring import write_score_config
from rollout.models.templates import carry_template
from rollout.runs.pipeline import is_described_by
from rollout_api.v1alpha1.common import Dtype
from rollout_api.worker import WorkerConfig

CONFIG, GENERATION = "config.json", "generation_config.json"
TORCH = {"Float32": "float32", "BFloat16": "bfloat16"}


def find_base(config: WorkerConfig, folder: Path) -> Path:
    """The base's folder, with the files that the run began with. Raises ModelNotFound.

    A run's folder may have been moved with the model in it that was made for the run.
    """
    path = Path(config.resolved.model_path)
    own = Path(config.layout.run_dir)
    if not path.is_dir() and path.is_relative_to(own):
        path = folder / path.relative_to(own)
    if not (path / CONFIG).is_file():
        raise ModelNotFound(
            f"run {folder.name}: the model that it began with is not at {path}, and an export takes"
            " configuration and tokenizer from there; put it back, or export where the run was made"
        )
    found = digest_model(path)
    if found != config.resolved.model_digest:
        raise ModelNotFound(
            f"run {folder.name}: the model at {path} has changed since the run began: expected"
            f" {config.resolved.model_digest}, got {found}; put the old files back"
        )
    return path


def describe_dense(config: WorkerConfig, base: Path, target: Path, dtype: Dtype) -> None:
    """Into ``target``: the base's configuration and tokenizer, as those of the model that was trained."""
    copy_description(base, target)
    if config.spec.trains_scorer:
        write_score_config(target, config.resolved.pad_token_id)
    set_dtype(target, dtype)
    _carry(config, target)


def describe_adapter(config: WorkerConfig, base: Path, target: Path) -> None:
    """Into ``target``: the tokenizer alone; a ``config.json`` would say that the folder is a whole model."""
    copy_tokenizer(base, target)
    _carry(config, target)


def copy_description(base: Path, target: Path, *, without: frozenset[str] = frozenset()) -> None:
    """The files that describe a model, but those of some names."""
    for path in base.iterdir():
        if is_described_by(path) and path.name not in without:
            shutil.copyfile(path, target / path.name)


def copy_tokenizer(base: Path, target: Path) -> None:
    """All of them but what makes a folder a whole model."""
    copy_description(base, target, without=frozenset({CONFIG, GENERATION}))


def _carry(config: WorkerConfig, target: Path) -> None:
    if config.spec.model.chat_template is not None:
        carry_template(target, config.spec.model.chat_template)


def set_dtype(target: Path, dtype: Dtype) -> None:
    """Loaders take the number format from the configuration, not from the tensors."""
    path = target / CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    name = "torch_dtype" if "torch_dtype" in config else "dtype"
    config[name] = TORCH[dtype]
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
