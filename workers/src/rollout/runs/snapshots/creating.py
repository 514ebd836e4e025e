"""A snapshot of a run of this machine, live or over, from its ledger and its objects: the run is not asked, and not held up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from rollout.errors import NoAnchorYet, ObjectMissing, SpecError
from rollout.ledger.cuts import LedgerCut
from rollout.ledger.opening import open_reader
from rollout.ledger.records import AnchorManifest
from rollout.runs.identity import spec_identity
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.places import KnownPlace, place_of_run, read_config
from rollout.runs.worker_config import contents_of
from rollout.snapshots.collection import pinned
from rollout.snapshots.layers.contract import Moment, Taken
from rollout.snapshots.layers.registry import take_layers
from rollout.snapshots.layers.train_state import objects_of_anchor
from rollout.snapshots.manifest import Manifest, RunFacts, SnapshotGrade, SnapshotHeader
from rollout.snapshots.place import SnapshotPlace
from rollout.snapshots.saving import save_snapshot
from rollout.snapshots.signing import Signs
from rollout_api.worker import WorkerConfig

TRIES_MAX = 3
"""A live run may delete the anchor between the look at its ledger and the pin of its objects."""
LABEL_CHARACTERS_MAX = 80
STEPS_SHOWN = 12
RELOADED = (
    "plugins may have changed while this run went on (--reload-plugins), so that sampling it again would give other"
    " samples"
)
"""Why a run is graded logical, and what stands in its snapshots."""
RESTORED_FILE = "restored.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A snapshot, and the step that its run had committed when it was made."""

    manifest: Manifest
    place: KnownPlace
    committed_step: int


def create_snapshot(
    run: RunDir,
    signer: Signs,
    *,
    step: int | None = None,
    label: str = "",
    place: KnownPlace | None = None,
    beside: Callable[[Moment, SnapshotPlace], Taken] | None = None,
) -> Created:
    """The snapshot of a run's newest anchor, or of that of ``step``; ``place``: of its objects, where they are open already.

    ``beside`` makes one more layer, of the same moment. Raises SpecError, NoAnchorYet, StoreError, LedgerError.
    """
    if len(label) > LABEL_CHARACTERS_MAX or not label.isprintable():
        raise SpecError(f"--label: expected at most {LABEL_CHARACTERS_MAX} printable characters")
    config = read_config(run)
    if config.spec.train is None:
        raise SpecError(f"run {run.name} trains nothing: it has no state to take a snapshot of")
    place = place or place_of_run(run)
    for attempt in range(1, TRIES_MAX + 1):
        try:
            return _create(run, config, place, signer, step=step, label=label, beside=beside)
        except ObjectMissing:
            if attempt == TRIES_MAX:
                raise
    raise AssertionError("the last try returns or raises")


def _create(
    run: RunDir,
    config: WorkerConfig,
    place: KnownPlace,
    signer: Signs,
    *,
    step: int | None,
    label: str,
    beside: Callable[[Moment, SnapshotPlace], Taken] | None,
) -> Created:
    def choose(anchors: tuple[AnchorManifest, ...]) -> AnchorManifest:
        return _choose(anchors, run, step)

    with open_reader(config.spec.storage, run.ledger, config.run.uid) as ledger:
        anchor, cut = ledger.cut(choose)
        committed = ledger.run().step
    grade: SnapshotGrade = (
        "exact" if config.resolved.grade == "Exact" and anchor.grade == "exact" else "logical"
    )
    header = SnapshotHeader(
        created_at=anchor.created_at,
        label=label,
        run=_facts(config),
        lineage=anchor.lineage,
        step=anchor.step,
        chain=anchor.chain,
        grade=grade,
        runtime={name: str(one) for name, one in anchor.state.get("identity", {}).items()},
        restored_from=read_restored(run),
        reason=RELOADED if config.reloads_plugins else msgspec.UNSET,
    )
    opened = (
        place.open()
    )  # the one store reads and stores: what it has verified it does not read again
    moment = Moment(anchor=anchor, cut=cut, grade=grade, source=opened.store)
    with pinned(place.named, _objects(anchor, cut)):
        taken = [] if beside is None else [beside(moment, opened)]
        taken += take_layers(moment)
        manifest = save_snapshot(opened, header, taken, signer)
    return Created(manifest=manifest, place=place, committed_step=committed)


def read_restored(run: RunDir) -> str:
    """The id of the snapshot that a run began with; empty where it began with a model. Raises SpecError."""
    try:
        return str(json.loads((run.path / RESTORED_FILE).read_text())["snapshot"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{run.path / RESTORED_FILE} cannot be read: {error}") from error


def _objects(anchor: AnchorManifest, cut: LedgerCut) -> set[str]:
    needed = {digest for objects in cut.versions.values() for digest in objects}
    return needed | set(objects_of_anchor(anchor).values())


def _choose(anchors: tuple[AnchorManifest, ...], run: RunDir, step: int | None) -> AnchorManifest:
    if not anchors:
        raise NoAnchorYet(
            f"run {run.name} has no anchor yet, so there is nothing to take a snapshot of: one is saved every"
            " spec.snapshots.everySteps steps, and when the run ends"
        )
    if step is None:
        return anchors[-1]
    found = [anchor for anchor in anchors if anchor.step == step]
    if not found:
        shown = ", ".join(str(anchor.step) for anchor in anchors[-STEPS_SHOWN:])
        raise SpecError(
            f"step {step}: run {run.name} keeps anchors of steps {shown}; more are kept with"
            " spec.snapshots.keepLast and everySteps"
        )
    return found[-1]


def _facts(config: WorkerConfig) -> RunFacts:
    assert config.spec.train is not None
    algorithm = next(iter(config.spec.train.algorithm.model_dump(exclude_none=True)))
    contents = contents_of(config)
    return RunFacts(
        name=config.run.name,
        namespace=config.run.namespace,
        uid=config.run.uid,
        algorithm=algorithm,
        spec_digest=config.spec_digest,
        identity_format=config.identity_format,
        identity=spec_identity(config.spec),
        contents={name: digest for name, digest in contents.items() if digest is not None},
        dtype=config.resolved.dtype,
        threads=config.threads,
    )
