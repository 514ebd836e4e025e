"""A run that begins with a snapshot: its objects copied, its ledger begun at the step, its learner's state as saved.

Everything is verified, and refused where it has to be, before anything of the new run exists. It inherits seed and order
of the data; name, place and steps are its own. Killed on the way, nothing has begun: the same command makes another run.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollout.errors import SnapshotRefused
from rollout.ledger.contract import Ledger
from rollout.ledger.cuts import TABLES, LedgerCut
from rollout.ledger.opening import open_ledger
from rollout.ledger.records import AnchorManifest, Limits, RunIdentity
from rollout.objects.filesystem import write_atomically
from rollout.objects.opening import open_store
from rollout.runs.identity import spec_identity
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import RESTORED_FILE
from rollout.runs.snapshots.overrides import Change, check_changes
from rollout.runs.snapshots.places import WhereToLook, find_snapshot
from rollout.runs.worker_config import contents_of
from rollout.seams import ObjectSource
from rollout.snapshots.layers.registry import BUFFER, MEMORY, TRAIN_STATE
from rollout.snapshots.layers.train_state import objects_of_anchor
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.signing import key_path, parse_trusted, read_public, require_trusted
from rollout_api.worker import WorkerConfig

LOGICAL = "logical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A snapshot that a run is to begin with: trusted, and read whole."""

    manifest: Manifest
    anchor: AnchorManifest
    cut: LedgerCut
    source: ObjectSource

    def describe(self, config: WorkerConfig) -> str:
        """For people: which, of what, and what the run may claim."""
        header = self.manifest.header
        return (
            f"step {header.step} of {header.run.name} from snapshot {self.manifest.id}, graded"
            f" {config.resolved.grade}"
        )


def trusted_keys(given: Sequence[str]) -> set[str]:
    """The keys that a restore takes: this installation's, and those that were given. Raises SpecError."""
    own = read_public(key_path(os.environ))
    return {parse_trusted(one) for one in given} | ({own} if own else set())


def prepare_restore(snapshot: str, where: WhereToLook) -> Restore:
    """Find, trust and read a snapshot. Raises SnapshotRefused, and StoreError for what is damaged."""
    found = find_snapshot(snapshot, where)
    manifest, source = found.manifest, found.place.source
    require_trusted(manifest, trusted_keys(where.trust))
    state, buffer = manifest.layer("train_state"), manifest.layer("buffer")
    if state is None or buffer is None:
        held = ", ".join(layer.kind for layer in manifest.layers)
        raise SnapshotRefused(
            f"snapshot {manifest.id} holds {held}: a run begins with train_state and buffer"
        )
    cut = BUFFER.read(buffer, source)
    if (kept := manifest.layer("episodic_memory")) is not None:
        tables = {**cut.tables, "memory": MEMORY.read(kept, source)}
        cut = msgspec.structs.replace(cut, tables=tables)
    return Restore(
        manifest=manifest, anchor=TRAIN_STATE.read(state, source), cut=cut, source=source
    )


def restore_into(restore: Restore, config: WorkerConfig) -> WorkerConfig:
    """Begin the run of ``config`` with the snapshot; what its processes are to be told. Raises SnapshotRefused, StoreError.

    Objects first, the ledger last: before it is there, no run has begun.
    """
    changes = find_cost(restore, config)
    told = tell(restore, config, changes)
    exact = told.resolved.grade == config.resolved.grade
    anchor = restore.anchor if exact else msgspec.structs.replace(restore.anchor, grade=LOGICAL)
    copy_objects(restore, told)
    run = RunDir(path=Path(told.layout.run_dir))
    write_atomically(
        run.snapshots / f"{anchor.name}.json",
        msgspec.json.format(msgspec.json.encode(anchor), indent=2) + b"\n",
    )
    write_atomically(run.path / RESTORED_FILE, _provenance(restore, changes))
    asyncio.run(_begin_ledger(restore, anchor, told))
    return told


def find_cost(restore: Restore, config: WorkerConfig) -> tuple[Change, ...]:
    """What is another way in the run of ``config``, each of which costs the grade. Raises SnapshotRefused for what may not be."""
    require_steps(restore, config)
    return check_changes(
        restore.manifest.header.run,
        spec_identity(config.spec),
        contents_of(config),
        config.resolved.dtype,
    )


def require_steps(restore: Restore, config: WorkerConfig) -> None:
    """Raise SnapshotRefused where the run is to end before the snapshot's step."""
    train, header = config.spec.train, restore.manifest.header
    if train is not None and train.max_steps is not None and train.max_steps < header.step:
        raise SnapshotRefused(
            f"spec.train.maxSteps: {train.max_steps}, but snapshot {restore.manifest.id} is the state after"
            f" step {header.step} of {header.run.name}: nothing is left to do; set more than {header.step}"
        )


def tell(restore: Restore, config: WorkerConfig, changes: Sequence[Change]) -> WorkerConfig:
    """What the processes of the run are told: the threads that the state was computed with, and the grade."""
    told = config.model_copy(update={"threads": restore.manifest.header.run.threads})
    exact = restore.manifest.header.grade == "exact" and not changes
    return told if exact else graded_logical(told)


def graded_logical(config: WorkerConfig) -> WorkerConfig:
    """The same run, of which no equality is claimed."""
    resolved = config.resolved.model_copy(update={"grade": "Logical"})
    return config.model_copy(update={"resolved": resolved})


def copy_objects(restore: Restore, config: WorkerConfig) -> None:
    """Store what the run of ``config`` needs of a snapshot and has not; every byte is verified. Raises StoreError."""
    store = open_store(config, "coordinator")
    needed = [*objects_of_anchor(restore.anchor).values()]
    needed += [digest for objects in restore.cut.versions.values() for digest in objects]
    for digest in dict.fromkeys(needed):
        if not store.has(digest):
            store.put_file(restore.source.path(digest))


def open_ledger_of(config: WorkerConfig) -> Ledger:
    """The ledger of a run that no process is at work on. Raises LedgerError."""
    identity = RunIdentity(
        uid=config.run.uid,
        name=config.run.name,
        spec_digest=config.spec_digest,
        identity_format=config.identity_format,
    )
    limits = Limits(failures_max=config.spec.limits.sample_attempts)
    return open_ledger(config.spec.storage, Path(config.layout.ledger_path), identity, limits)


async def _begin_ledger(restore: Restore, anchor: AnchorManifest, config: WorkerConfig) -> None:
    ledger = open_ledger_of(config)
    try:
        await ledger.restore(
            _with_anchor(restore.cut, anchor), f"from snapshot {restore.manifest.id}"
        )
    finally:
        await ledger.close()


def _with_anchor(cut: LedgerCut, anchor: AnchorManifest) -> LedgerCut:
    place = TABLES["anchors"].index("manifest")
    text = msgspec.json.encode(anchor).decode()
    rows = tuple((*row[:place], text, *row[place + 1 :]) for row in cut.tables.get("anchors", ()))
    return msgspec.structs.replace(cut, tables={**cut.tables, "anchors": rows})


def _provenance(restore: Restore, changes: Sequence[Change]) -> bytes:
    header = restore.manifest.header
    document = {
        "snapshot": restore.manifest.id,
        "run": header.run.name,
        "uid": header.run.uid,
        "step": header.step,
        "chain": header.chain,
        "changed": {f"spec.{one.field}": one.rule.reason for one in changes},
    }
    return json.dumps(document, indent=1).encode() + b"\n"
