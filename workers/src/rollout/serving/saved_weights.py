"""What a model of a training service was saved as, as a folder: a whole model that transformers loads, or an adapter for PEFT.

The same writer as that of runs' exports. Refuses what was deleted, and a base with other files than the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rollout.errors import ModelNotFound, SpecError, StoreError
from rollout.models.files import digest_model
from rollout.runs.export.adapter import AdapterFacts, name_base, peft_config
from rollout.runs.export.base import copy_description, copy_tokenizer, set_dtype
from rollout.runs.export.export import SHARD_BYTES, Exported
from rollout.runs.export.folder import is_taken
from rollout.runs.export.lineage import Base, Form, Lineage
from rollout.runs.export.writing import Content, find_same, write_model, write_peft
from rollout.service.calls import ALPHA
from rollout.service.kept.places import STATES, WEIGHTS, tensor_file
from rollout.service.reading.finding import OpenedModel, base_uri, open_by_id
from rollout.service.reading.saves import FoundSave, find_save
from rollout.weights.merging import OpenWeights, as_stored, for_peft, open_weights
from rollout.weights.numbers import FLOATS
from rollout_api.v1alpha1.common import Dtype

ALGORITHM = "Loop"
SOURCE = "what its client sent, call by call (rollout runs trace)"
WEIGHT = "weight/"
"""Before the names of trained tensors in a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedExport:
    """What is meant: ``name`` None the newest; ``adapter`` the state's adapter, else the whole model."""

    name: str | None = None
    adapter: bool = False
    dtype: Dtype = "Float32"
    shard_bytes: int = SHARD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is written: ``file`` holds the tensors, ``base`` is the base's folder."""

    opened: OpenedModel
    found: FoundSave
    file: Path
    base: Path
    export: SavedExport


def export_saved(opened: OpenedModel, base: Path, target: Path, export: SavedExport) -> Exported:
    """Write the folder, which is whole or not there. Raises SpecError, ModelNotFound, StoreError, LedgerError."""
    source = _find(opened, base, export)
    lineage = _describe_lineage(source)
    if is_taken(target):
        there, was_there = find_same(target, lineage), True
    else:
        there, was_there = _write(source, target, lineage), False
    return Exported(folder=target, lineage=there, last_step=there.step, was_there=was_there)


def export_for_client(service: Path, base: Path, path: str, target: Path) -> None:
    """What a path of clients names: weights as a whole model, a state as an adapter. Raises as ``export_saved``."""
    model_id, kind, name = path.rsplit("://", 1)[-1].split("/")
    opened = open_by_id(service, model_id)
    if opened is None:
        raise SpecError(f"no model {model_id!r} in the book of {service}")
    with opened:
        export_saved(opened, base, target, SavedExport(name=name, adapter=kind == "weights"))


def _find(opened: OpenedModel, base: Path, export: SavedExport) -> _Source:
    if export.adapter and opened.model.adapter is None:
        raise SpecError(
            f"model {opened.model.id} trains all weights, it has no adapter: save its weights, and export these"
        )
    found = find_save(opened, export.name, state=export.adapter)
    folder = opened.folder / (STATES if export.adapter else WEIGHTS)
    if digest_model(base) != opened.model.base_digest:
        raise ModelNotFound(
            f"the base at {base} is {digest_model(base)}, the model is over {opened.model.base_digest}: name the"
            " base as it was with --base"
        )
    file = tensor_file(folder, found.saved.digest)
    if not file.is_file():
        raise StoreError(f"{file} is missing: the bytes of {found.saved.id} are not in this folder")
    return _Source(opened=opened, found=found, file=file, base=base, export=export)


def _write(source: _Source, target: Path, lineage: Lineage) -> Lineage:
    saved = source.found.saved
    dtype = FLOATS[source.export.dtype]
    with open_weights([source.file]) as stored:
        if source.export.adapter:
            tensors = for_peft(_trained(stored), dtype)
        else:
            tensors = as_stored(stored, dtype)
        content = Content(
            tensors=tensors,
            verify=_verifier(stored, saved.digest, f"{source.file} of {saved.id}"),
            describe=partial(_describe, source),
        )
        return write_model(target, lineage, content, source.export.shard_bytes)


def _verifier(stored: OpenWeights, digest: str, what: str) -> Callable[[], None]:
    """Every tensor of the file, those that do not go out, too."""

    def verify() -> None:
        for name in stored.infos:
            stored.read(name)
        stored.require(digest, what)

    return verify


def _trained(state: OpenWeights) -> OpenWeights:
    """The adapter of a state, without its moments."""
    names = {name.removeprefix(WEIGHT): name for name in state.infos if name.startswith(WEIGHT)}
    infos = {short: replace(state.infos[name], name=short) for short, name in names.items()}
    return OpenWeights(infos, {short: state.read(name) for short, name in names.items()})


def _describe(source: _Source, work: Path, names: Sequence[str]) -> None:
    if not source.export.adapter:
        copy_description(source.base, work)
        set_dtype(work, source.export.dtype)
        return
    adapter, uri = source.opened.model.adapter, _base_uri(source.opened)
    assert adapter is not None
    copy_tokenizer(source.base, work)
    base = name_base(uri, source.base)
    write_peft(work, peft_config(AdapterFacts(rank=adapter.rank, alpha=ALPHA, base=base), names))


def _describe_lineage(source: _Source) -> Lineage:
    """The lineage without digests of what is to be written; its run is the model."""
    model, found = source.opened.model, source.found
    form: Form = "merged" if model.adapter is not None else "full"
    return Lineage(
        run=model.id,
        uid=model.id,
        spec_digest=model.chain,
        algorithm=ALGORITHM,
        step=found.step,
        lineage=0,
        chain=found.chain,
        grade="Exact",
        base=Base(uri=_base_uri(source.opened), digest=model.base_digest),
        source=SOURCE,
        data={},
        evaluations=(),
        form="adapter" if source.export.adapter else form,
        scores=False,
        dtype=source.export.dtype,
        num_parameters=0,
        version=found.saved.digest,
        weights="",
        tensors={},
        files={},
    )


def _base_uri(opened: OpenedModel) -> str:
    return base_uri(opened.book, opened.model) or opened.model.base
