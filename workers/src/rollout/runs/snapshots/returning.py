"""A run that goes back to one of its own snapshots in place: its name, folder and past stay, and a new lineage begins after that step.

What was committed later stays written down as steps that count no more. The ledger is changed last, in one transaction:
killed before that, the run stands where it stood, and the same command goes back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rollout.errors import SnapshotRefused, SpecError
from rollout.objects.filesystem import fail_on_disk, write_atomically
from rollout.runs.run_dir import RunDir, runs_home
from rollout.runs.snapshots.places import read_config
from rollout.runs.snapshots.restoring import (
    Restore,
    copy_objects,
    open_ledger_of,
    require_steps,
    restore_into,
)
from rollout.snapshots.layers.memory import memory_of
from rollout.snapshots.manifest import is_snapshot_id
from rollout_api.worker import WorkerConfig

STALE = ("result.json", "snapshots/Latest.json", "snapshots/Best.json")
"""What a run's folder says of steps that count no more; the run writes them again."""


def begin_or_return(
    restore: Restore, config: WorkerConfig, *, resumed: bool
) -> tuple[WorkerConfig, str]:
    """Begin the new run of ``config`` with a snapshot, or take back the one that is ``resumed``.

    Returns what its processes are told, and a line for people. Raises SnapshotRefused, StoreError, LedgerError.
    """
    if not resumed:
        told = restore_into(restore, config)
        return told, f"restored {restore.describe(told)}"
    lineage = return_to(restore, config)
    return config, f"gone back to {restore.describe(config)}, as lineage {lineage}"


def return_to(restore: Restore, config: WorkerConfig) -> int:
    """Take the run of ``config``, of which no process is at work, back to its own snapshot; the lineage that begins.

    Raises SnapshotRefused for a snapshot of another run, or past the run's last step; StoreError, LedgerError.
    """
    require_own(restore, config)
    require_steps(restore, config)
    copy_objects(restore, config)
    run = RunDir(path=Path(config.layout.run_dir))
    for name in STALE:
        _remove(run.path / name)
    write_atomically(
        run.snapshots / f"{restore.anchor.name}.json",
        msgspec.json.format(msgspec.json.encode(restore.anchor), indent=2) + b"\n",
    )
    return asyncio.run(_go_back(restore, config))


def is_own(restore: Restore, config: WorkerConfig) -> bool:
    """Whether the snapshot is of this very run."""
    of, run = restore.manifest.header.run, config.run
    return (of.uid, of.namespace) == (run.uid, run.namespace)


def require_own(restore: Restore, config: WorkerConfig) -> None:
    """Raise SnapshotRefused unless the snapshot is of this very run."""
    of, run = restore.manifest.header.run, config.run
    if not is_own(restore, config):
        raise SnapshotRefused(
            f"--in-place: snapshot {restore.manifest.id} is of run {of.name} ({of.uid}), this is {run.name} ({run.uid}): a"
            " run goes back to its own snapshots; leave --in-place out, and a new run begins with it"
        )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        fail_on_disk("delete", path, error)


def find_folder(
    resume: str | None, restores: Mapping[str, Restore], run_dir: Path | None, *, in_place: bool
) -> str | None:
    """Which earlier run is gone on with, as ``--resume`` names it: with ``in_place`` the folder of the snapshot's own run.

    None for a new run, also one that begins with the snapshot that ``resume`` names. Raises SpecError, SnapshotRefused.
    """
    if not in_place:
        return None if resume is not None and is_snapshot_id(resume) else resume
    if resume is None or not is_snapshot_id(resume):
        raise SpecError(
            f"--in-place: expected --resume ID, a snapshot's, found {'--resume ' + resume if resume else 'no --resume'}"
        )
    if run_dir is not None:
        return run_dir.name
    [restore] = restores.values()
    home, of = runs_home(os.environ), restore.manifest.header.run
    for config in sorted(home.glob("*/worker.json")):
        run = RunDir(path=config.parent)
        if read_config(run).run.uid == of.uid:
            return run.name
    raise SnapshotRefused(
        f"--in-place: snapshot {restore.manifest.id} is of run {of.name} ({of.uid}), which is not in {home}: leave"
        " --in-place out, and a new run begins with it"
    )


async def _go_back(restore: Restore, config: WorkerConfig) -> int:
    ledger = open_ledger_of(config)
    try:
        return await ledger.go_back(
            restore.anchor, f"gone back to snapshot {restore.manifest.id}", memory_of(restore.cut)
        )
    finally:
        await ledger.close()
