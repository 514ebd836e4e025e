"""Pipelines: several runs in one file, ordered by ``fromRun``, each on what the last produced.

Pure but for ``materialise_model``, which writes the model folder that a dependent run starts from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.ledger.records import ANCHOR_FORMAT
from rollout.models.scoring import write_score_config
from rollout.runs.manifest import Document
from rollout.runs.run_dir import RunDir
from rollout_api.fields.model_sources import needed_runs
from rollout_api.v1alpha1.run import RolloutRunSpec

WEIGHTS_SUFFIX = ".safetensors"
MODEL_SUFFIXES = (".json", ".jinja", ".model", ".txt")
"""Files of a model folder that are not its weights."""
LINEAGE_FILE = "rollout_lineage.json"
"""What an exported model says of its own bytes (``rollout.runs.export.lineage``): of no other model."""


def source_run(data: Mapping[str, Any]) -> str | None:
    """The run whose weights this manifest starts from, or None."""
    spec = data.get("spec") or {}
    return ((spec.get("model") or {}).get("fromRun") or {}).get("name")


def order_runs(documents: Sequence[Document]) -> tuple[Document, ...]:
    """The runs among ``documents``, each after the one it starts from, else in file order.

    Other kinds (a runtime beside its run) are left out. Raises SpecError for a cycle, two runs of
    one name, or a file without a run.
    """
    runs = {_name(one): one for one in documents if one.data.get("kind") == "RolloutRun"}
    if not runs:
        swept = any(one.data.get("kind") == "RolloutSweep" for one in documents)
        hint = "; a RolloutSweep is run by rollout sweep -f" if swept else ""
        raise SpecError(f"{documents[0].source}: no RolloutRun in it{hint}")
    for document in documents:
        if document.data.get("kind") == "RolloutRun" and runs[_name(document)] is not document:
            raise SpecError(f"{document.source}: two runs are named {_name(document)!r}")
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, document in runs.items():
        sorter.add(name, *(one for one in needed_runs(document.data) if one in runs))
    try:
        return tuple(runs[name] for name in sorter.static_order())
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise SpecError(
            f"{documents[0].source}: fromRun goes round in a circle: {circle}"
        ) from error


def _name(document: Document) -> str:
    return str((document.data.get("metadata") or {}).get("name") or "run")


def read_snapshot(run: RunDir, name: str) -> dict[str, Any]:
    """The manifest of a run's snapshot. Raises SpecError listing the snapshots there are."""
    path = run.snapshots / f"{name}.json"
    try:
        snapshot = json.loads(path.read_text())
    except FileNotFoundError as error:
        known = ", ".join(sorted(one.stem for one in run.snapshots.glob("*.json"))) or "none"
        raise SpecError(
            f"run {run.name} has no snapshot {name!r} (there: {known}); "
            "did it end, and did an evaluation select a Best?"
        ) from error
    except ValueError as error:
        raise SpecError(f"snapshot {path} is not readable: {error}") from error
    found = snapshot.get("state", {}).get("format", ANCHOR_FORMAT)
    if found != ANCHOR_FORMAT:
        raise SpecError(
            f"snapshot {path} has format {found!r}, this version of rollout reads {ANCHOR_FORMAT}:"
            " start from it with the version of rollout that saved it, or from another snapshot"
        )
    return snapshot


def is_described_by(path: Path) -> bool:
    """Whether this file of a model's folder describes it: not its weights, nor where they came from."""
    of_weights = path.name.endswith(f"{WEIGHTS_SUFFIX}.index.json") or path.name == LINEAGE_FILE
    return path.suffix in MODEL_SUFFIXES and not of_weights and path.is_file()


def materialise_model(
    *,
    config_path: Path,
    weights: Path,
    target: Path,
    score_pad_id: int | None = None,
    chat_template: str | None = None,
) -> Path:
    """A model folder at ``target``: ``config_path``'s configuration and tokenizer, ``weights`` as tensors.

    ``score_pad_id`` makes it the configuration of a reward model, whose weights these are.
    ``chat_template`` is the ``model.chatTemplate`` that they were trained with, which goes with them.
    Weights are linked where the file system can, else copied. Idempotent; appears complete or not at all.
    """
    if target.exists():
        return target
    work = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for path in config_path.iterdir():
        if is_described_by(path):
            shutil.copy2(path, work / path.name)
    if score_pad_id is not None:
        write_score_config(work, score_pad_id)
    if chat_template is not None:
        from rollout.models.templates import carry_template

        carry_template(work, chat_template)
    _link(weights, work / "model.safetensors")
    work.rename(target)
    return target


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def find_output(spec: RolloutRunSpec) -> str | None:
    """Where the model of a run that has ended well goes, as it is written; None: it stays with the run."""
    output = None if spec.train is None else spec.train.output
    return None if output is None else output.uri
