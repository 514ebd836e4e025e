"""Which of a run's versions is meant, and whether its weights are still stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rollout.errors import LedgerError, SpecError
from rollout.ledger.opening import open_reader
from rollout.ledger.records import AnchorManifest
from rollout.ledger.sql.reader import Reader
from rollout.ledger.views import EvaluationView
from rollout.objects.opening import open_source
from rollout.runs.pipeline import read_snapshot
from rollout.runs.run_dir import RunDir
from rollout.seams import ObjectSource
from rollout.types import WeightVersion
from rollout_api.worker import WorkerConfig

STEPS_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSelector:
    """``step`` None: the newest there is, or with ``best`` what the selecting evaluation chose."""

    step: int | None = None
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWeights:
    """Those of a snapshot, which stay when the run lets its own go: ``source`` has the objects of ``anchor``."""

    id: str
    anchor: AnchorManifest
    source: ObjectSource = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A version whose objects are there, and what the ledger says of it.

    ``anchor`` holds the train state of the same step, None where none was saved; ``chain`` is the hash chain's
    value at the step; ``last_step`` the last one that the run has committed.
    """

    version: WeightVersion
    chain: str
    anchor: AnchorManifest | None
    evaluations: tuple[EvaluationView, ...]
    last_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSteps:
    """What of a run can be exported: ``steps`` whose weights are stored, ``best`` the one that was chosen.

    ``form`` is what an export writes unless it is told to merge.
    """

    run: str
    base: str
    algorithm: str
    form: str
    dtype: str
    last_step: int
    steps: tuple[int, ...]
    best: int | None


def algorithm_of(config: WorkerConfig) -> str:
    """``GRPO``, ``SFT``, ..."""
    assert config.spec.train is not None
    return next(iter(config.spec.train.algorithm.model_dump(exclude_none=True))).upper()


def base_uri(config: WorkerConfig) -> str:
    """The model that the run began with, as its manifest names it."""
    model = config.spec.model
    if model.uri is not None:
        return model.uri
    return f"the result of {model.from_run.name}" if model.from_run is not None else "unknown"


def list_stored(folder: Path) -> StoredSteps:
    """What can be exported of a run. Raises SpecError, LedgerError."""
    config = read_run(folder)
    store = open_objects(config, folder)
    best = folder / "snapshots" / "Best.json"
    with open_reader(config.spec.storage, folder / "ledger.db", config.run.uid) as ledger:
        return StoredSteps(
            run=folder.name,
            base=base_uri(config),
            algorithm=algorithm_of(config),
            form="full" if config.spec.model.lora is None else "adapter",
            dtype=config.resolved.dtype,
            last_step=ledger.run().step,
            steps=_stored_steps(ledger, store),
            best=_best(folder).step if best.exists() else None,
        )


def read_run(folder: Path) -> WorkerConfig:
    """A run's configuration. Raises SpecError for a folder that is no run, or of a run that trains nothing."""
    path = RunDir(path=folder).worker_config
    try:
        config = WorkerConfig.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    if config.spec.train is None:
        raise SpecError(f"run {config.run.name} trains nothing: it has no weights of its own")
    return config


def open_objects(config: WorkerConfig, folder: Path) -> ObjectSource:
    """Where the run's objects are read."""
    return open_source(config, RunDir(path=folder).objects)


def choose(
    config: WorkerConfig, folder: Path, store: ObjectSource, selector: VersionSelector
) -> Chosen:
    """The version that is meant. Raises SpecError for one that there is not, or that is not stored any more."""
    with open_reader(config.spec.storage, folder / "ledger.db", config.run.uid) as ledger:
        run = ledger.run()
        if ledger.initial() is None:
            raise SpecError(
                f"run {folder.name} has no weights yet: its learner has not begun; wait for its first step"
            )
        version = _find(ledger, folder, store, selector)
        if not _is_stored(store, version):
            raise _collected(ledger, folder, store, version)
        return Chosen(
            version=version,
            chain=_chain_at(ledger, version),
            anchor=_anchor_of(ledger, version),
            evaluations=tuple(
                one
                for one in ledger.evaluations()
                if one.summary and (one.lineage, one.step) == (version.lineage, version.step)
            ),
            last_step=run.step,
        )


def choose_snapshot(weights: SnapshotWeights) -> Chosen:
    """The version of a snapshot, of which no evaluation is known."""
    anchor = weights.anchor
    return Chosen(
        version=anchor.version,
        chain=anchor.chain,
        anchor=anchor,
        evaluations=(),
        last_step=anchor.step,
    )


def _find(
    ledger: Reader, folder: Path, store: ObjectSource, selector: VersionSelector
) -> WeightVersion:
    if selector.best:
        return _best(folder)
    if selector.step is not None:
        return _at(ledger, folder, selector.step)
    last = ledger.run().step
    if last == 0:
        raise SpecError(
            f"run {folder.name} has taken no step yet: it has the weights that it began with; --step 0"
            " exports these"
        )
    newest = _at(ledger, folder, last)
    anchored = [anchor.version for anchor in reversed(ledger.anchors()) if anchor.step > 0]
    return next((one for one in (newest, *anchored) if _is_stored(store, one)), newest)


def _best(folder: Path) -> WeightVersion:
    """What the coordinator wrote of the best version. Raises SpecError."""
    found = read_snapshot(RunDir(path=folder), "Best")
    try:
        return msgspec.convert(found.get("version"), WeightVersion)
    except msgspec.ValidationError as error:
        raise SpecError(
            f"run {folder.name}: its snapshot Best names no version: {error}"
        ) from error


def _at(ledger: Reader, folder: Path, step: int) -> WeightVersion:
    """The version after ``step`` in the live lineage."""
    last = ledger.run().step
    if not 0 <= step <= last:
        raise SpecError(f"step {step}: run {folder.name} has committed steps 1 to {last}")
    if step == 0:
        first = ledger.initial()
        assert first is not None
        return first[0]
    record = ledger.record(step)
    if record is None:
        raise LedgerError(f"the ledger of run {folder.name} has no record of step {step}")
    return record.version


def _is_stored(store: ObjectSource, version: WeightVersion) -> bool:
    return all(map(store.has, version.objects))


def _collected(
    ledger: Reader, folder: Path, store: ObjectSource, version: WeightVersion
) -> SpecError:
    shown = ", ".join(map(str, _stored_steps(ledger, store)[-STEPS_SHOWN:])) or "none"
    return SpecError(
        f"run {folder.name} does not keep the weights of step {version.step} (it keeps those of steps:"
        f" {shown}); name one with --step, and keep more with spec.snapshots.keepLast or everySteps"
    )


def _stored_steps(ledger: Reader, store: ObjectSource) -> tuple[int, ...]:
    anchored = (anchor.version for anchor in ledger.anchors())
    kept = (*ledger.state().versions, *anchored)
    return tuple(sorted({one.step for one in kept if _is_stored(store, one)}))


def _chain_at(ledger: Reader, version: WeightVersion) -> str:
    if version.step == 0:
        first = ledger.initial()
        return "" if first is None else first[1]
    steps = ledger.steps(after=version.step - 1, limit=1)
    return next((one.chain for one in steps if one.lineage == version.lineage), "")


def _anchor_of(ledger: Reader, version: WeightVersion) -> AnchorManifest | None:
    return next(
        (
            one
            for one in ledger.anchors()
            if one.version.digest == version.digest and one.step == version.step
        ),
        None,
    )
