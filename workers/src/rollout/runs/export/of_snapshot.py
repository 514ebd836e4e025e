"""Weights by the id of a snapshot. What describes a model (its base, tokenizer and adapter) is told by the run's folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rollout.errors import SnapshotRefused, SpecError
from rollout.runs.export.choose import SnapshotWeights
from rollout.runs.run_dir import RunDir, runs_home
from rollout.runs.snapshots.places import WhereToLook, read_config
from rollout.runs.snapshots.restoring import prepare_restore

ID = re.compile(r"[0-9a-f]{64}")


def is_snapshot(given: str) -> bool:
    """Whether this is the id of a snapshot: no run has such a name."""
    return ID.fullmatch(given) is not None


def find_weights(snapshot: str, where: WhereToLook) -> tuple[Path, SnapshotWeights]:
    """The folder of a snapshot's run on this machine, and the weights. Raises SnapshotRefused, StoreError."""
    restore = prepare_restore(snapshot, where)
    run = restore.manifest.header.run
    folder = _folder_of(run.uid)
    if folder is None:
        raise SnapshotRefused(
            f"snapshot {snapshot}: its run {run.name} ({run.uid}) is not of this machine, and an export takes configuration"
            f" and tokenizer from there; begin a run with it (rollout run -f FILE --resume {snapshot}), and export that"
        )
    weights = SnapshotWeights(id=snapshot, anchor=restore.anchor, source=restore.source)
    return folder, weights


def _folder_of(uid: str) -> Path | None:
    for file in sorted(runs_home(os.environ).glob("*/worker.json")):
        try:
            found = read_config(RunDir(path=file.parent)).run.uid
        except SpecError:
            continue  # another run's, which nobody asked for
        if found == uid:
            return file.parent
    return None
