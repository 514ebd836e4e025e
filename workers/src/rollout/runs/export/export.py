"""A run's weights written to a folder that transformers, vLLM and PEFT load; one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rollout.errors import ObjectMissing, SpecError
from rollout.models.files import scratch_dir
from rollout.runs.export.adapter import adapter_config
from rollout.runs.export.base import describe_adapter, describe_dense, find_base
from rollout.runs.export.choose import (
    Chosen,
    SnapshotWeights,
    VersionSelector,
    choose,
    choose_snapshot,
    open_objects,
    read_run,
)
from rollout.runs.export.describe import describe_run
from rollout.runs.export.folder import is_taken
from rollout.runs.export.lineage import Form, Lineage
from rollout.runs.export.writing import Content, find_same, write_model, write_peft
from rollout.seams import ObjectSource
from rollout.weights.lora import serves_adapter
from rollout.weights.merging import Merging, as_stored, for_peft, merged, open_weights
from rollout.weights.mirror import WeightFiles
from rollout.weights.numbers import FLOATS
from rollout.weights.shards import Outgoing
from rollout_api.v1alpha1.common import Dtype
from rollout_api.worker import WorkerConfig

SHARD_BYTES = 5 * 10**9
ANCHORED = "weights"
"""The object of an anchor that holds what is trained: of a run with an adapter, that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is exported: ``dtype`` None as it was trained, ``merge`` the adapter into its base."""

    selector: VersionSelector | SnapshotWeights
    merge: bool = False
    dtype: Dtype | None = None
    shard_bytes: int = SHARD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What is in the folder, or in the place of a bucket, now; ``last_step`` is the run's, ``was_there`` that nothing had to be written."""

    folder: Path | str
    lineage: Lineage
    last_step: int
    was_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """What an export is of; ``lineage`` without digests of what is to be written, ``dtype`` what that is written in."""

    config: WorkerConfig
    store: ObjectSource
    chosen: Chosen
    dtype: Dtype
    lineage: Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is read: ``base`` is the folder of the model that the run began with, ``scratch`` an empty one."""

    plan: ExportPlan
    base: Path
    scratch: Path


def export_model(run: Path, target: Path, export: Export) -> Exported:
    """Write the weights of the run in the folder ``run`` to ``target``, which is whole or not there.

    Every object, every tensor and the base's files are verified as they are read. Raises SpecError for what there
    is not, StoreError for what is damaged or cannot be written.
    """
    plan = plan_export(run, export)
    if is_taken(target):
        return _already(target, plan)
    base = find_base(plan.config, run)
    folder = scratch_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="export-", dir=folder) as scratch:
        source = _Source(plan=plan, base=base, scratch=Path(scratch))
        lineage = _write(source, target, export.shard_bytes)
    return Exported(
        folder=target, lineage=lineage, last_step=plan.chosen.last_step, was_there=False
    )


def plan_export(run: Path, export: Export) -> ExportPlan:
    """Decide which weights are meant, and in which form. Raises SpecError for what there is not."""
    config = read_run(run)
    form = _form(config, merge=export.merge)
    store, chosen = _choose(config, run, export.selector)
    dtype = export.dtype or ("Float32" if form == "adapter" else config.resolved.dtype)
    return ExportPlan(
        config=config,
        store=store,
        chosen=chosen,
        dtype=dtype,
        lineage=describe_run(config, chosen, form=form, dtype=dtype),
    )


def _choose(
    config: WorkerConfig, run: Path, selector: VersionSelector | SnapshotWeights
) -> tuple[ObjectSource, Chosen]:
    if isinstance(selector, SnapshotWeights):
        return selector.source, choose_snapshot(selector)
    store = open_objects(config, run)
    return store, choose(config, run, store, selector)


def _form(config: WorkerConfig, *, merge: bool) -> Form:
    if config.spec.model.lora is not None:
        return "merged" if merge else "adapter"
    if merge:
        raise SpecError(
            f"--merge: run {config.run.name} trains all weights, there is no adapter to merge; leave it out"
        )
    return "full"


def _already(target: Path, plan: ExportPlan) -> Exported:
    found = find_same(target, plan.lineage)
    return Exported(folder=target, lineage=found, last_step=plan.chosen.last_step, was_there=True)


def _write(source: _Source, target: Path, shard_bytes: int) -> Lineage:
    with _open_tensors(source) as (tensors, verify):
        content = Content(tensors=tensors, verify=verify, describe=partial(_describe, source))
        return write_model(target, source.plan.lineage, content, shard_bytes)


def _describe(source: _Source, work: Path, names: Sequence[str]) -> None:
    if source.plan.lineage.form != "adapter":
        describe_dense(source.plan.config, source.base, work, source.plan.dtype)
        return
    describe_adapter(source.plan.config, source.base, work)
    write_peft(work, adapter_config(source.plan.config, source.base, names))


@contextmanager
def _open_tensors(
    source: _Source,
) -> Iterator[tuple[list[Outgoing], Callable[[], None]]]:
    """What is written, and a check, for afterwards, that what was read is what the run had committed."""
    config, version = source.plan.config, source.plan.chosen.version
    dtype = FLOATS[source.plan.dtype]
    what = f"run {config.run.name}, weights of step {version.step}"
    if source.plan.lineage.form == "adapter" and not serves_adapter(config):
        with open_weights([_anchored(source)]) as masters:
            yield (
                for_peft(masters, dtype),
                lambda: None,
            )  # the anchor names the object by its content
        return
    with open_weights([_stored(source)]) as weights:

        def verify() -> None:
            weights.require(version.digest, what)

        if source.plan.lineage.form == "adapter":
            yield for_peft(weights, dtype), verify
        elif source.plan.lineage.form == "merged" and serves_adapter(config):
            lora = config.spec.model.lora
            assert lora is not None
            with open_weights(sorted(source.base.glob("*.safetensors"))) as base:
                merging = Merging(
                    base=base,
                    adapter=weights,
                    scale=lora.alpha / lora.rank,
                    trained=FLOATS[config.resolved.dtype],
                )
                yield merged(merging, dtype), verify
        else:
            yield as_stored(weights, dtype), verify


def _stored(source: _Source) -> Path:
    """The version's file, patched from its deltas where it was stored as such."""
    try:
        return WeightFiles(source.plan.store, source.scratch).path(
            source.plan.chosen.version.object
        )
    except ObjectMissing as error:
        step = source.plan.chosen.version.step
        raise SpecError(
            f"the weights of step {step} went while they were read ({error}): the run that goes on keeps"
            " newer ones; export again, or name a step with an anchor"
        ) from error


def _anchored(source: _Source) -> Path:
    """The adapter as it was trained, which only anchors hold where merged weights are served."""
    anchor = source.plan.chosen.anchor
    if anchor is None:
        raise SpecError(
            f"run {source.plan.config.run.name} keeps the adapter of steps that it saved an anchor of, and of"
            f" step {source.plan.chosen.version.step} the merged weights only; name another step, or --merge"
        )
    return source.plan.store.path(anchor.objects[ANCHORED])
