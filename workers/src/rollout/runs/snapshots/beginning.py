"""A run of a cluster that begins with a snapshot, or goes back to its own: an order, carried out once in the coordinator's pod.

What the processes are told (threads, grade) is written down beside the run's objects: before its ledger begins, and after it
has gone back. A coordinator that comes back tells the same, and needs the snapshot no more. Killed on the way, the next
life does it again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from rollout.common.atomic_files import replace_text
from rollout.common.bounded import UNREADABLE
from rollout.errors import SnapshotRefused
from rollout.ledger.records import Record
from rollout.objects.filesystem import fail_on_disk, make_folder
from rollout.objects.named.contract import NamedObjects
from rollout.objects.opening import open_names
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.adopting import require_of_namespace
from rollout.runs.snapshots.places import WhereToLook
from rollout.runs.snapshots.restoring import (
    Restore,
    find_cost,
    graded_logical,
    open_ledger_of,
    prepare_restore,
    restore_into,
    tell,
)
from rollout.runs.snapshots.returning import is_own, return_to
from rollout.snapshots.place import FOLDER
from rollout_api.worker import RestoreOrder, WorkerConfig

BEGUN = f"{FOLDER}begun.json"
BEGUN_BYTES_MAX = 64 << 10


class Begun(Record, frozen=True, kw_only=True):
    """What the processes of a run that began with a snapshot are told. ``snapshot``: the one that it last began or went back with.

    ``request``: the one by which it did.
    """

    snapshot: str
    threads: int
    grade: str
    request: str = ""

    def answers(self, order: RestoreOrder) -> bool:
        """Whether what is ordered has been done: a request that was taken out asks for nothing."""
        asked = order.request is None or order.request == self.request
        return self.snapshot == order.snapshot and asked


def begin_with_snapshot(config: WorkerConfig) -> WorkerConfig:
    """What the processes of the run are told, which has begun then, or gone back. Raises SnapshotRefused, StoreError, LedgerError."""
    if config.restore is None:
        return config
    named = open_names(config)
    run = RunDir(path=Path(config.layout.run_dir))
    make_folder(run.snapshots)
    if asyncio.run(_has_begun(config)):
        told = _go_on(config.restore, config, named)
    else:
        restore = _find(config.restore, config)
        told = tell(restore, config, find_cost(restore, config))
        _write(named, config.restore, told)
        restore_into(restore, config)
    try:
        replace_text(run.worker_config, told.model_dump_json(exclude_none=True, indent=1))
    except OSError as error:
        fail_on_disk("write", run.worker_config, error)
    return told


def _find(order: RestoreOrder, config: WorkerConfig) -> Restore:
    storage = config.spec.storage
    where = WhereToLook(
        object_path=order.place,
        endpoint=storage.endpoint if storage is not None else None,
        region=storage.region if storage is not None else None,
        trust=order.trusted,
    )
    restore = prepare_restore(order.snapshot, where)
    require_of_namespace(restore.manifest, order, config.run.namespace)
    return restore


async def _has_begun(config: WorkerConfig) -> bool:
    ledger = open_ledger_of(config)
    try:
        state = await ledger.load()
    finally:
        await ledger.close()
    return bool(state.versions or state.anchors or state.initial)


def _go_on(order: RestoreOrder, config: WorkerConfig, named: NamedObjects) -> WorkerConfig:
    """A run that has begun: what it was told before. An order that names another snapshot takes it back to that one, and so does another request."""
    begun = _read(named)
    told = config if begun is None else _told(begun, config)
    if begun is None or not begun.answers(order):
        restore = _find(order, config)
        _require_own(restore, config, begun)
        return_to(restore, config)
        _write(named, order, told)
    return told


def _require_own(restore: Restore, config: WorkerConfig, begun: Begun | None) -> None:
    """Raise SnapshotRefused unless the snapshot is of this very run."""
    if is_own(restore, config):
        return
    of = restore.manifest.header.run
    since = f"with snapshot {begun.snapshot}" if begun is not None else "without the snapshot"
    raise SnapshotRefused(
        f"spec.restoreFrom: run {config.run.name} has begun {since}, and {restore.manifest.id} is of run {of.name}"
        f" ({of.uid}): a run that has begun goes back to its own snapshots only; name one of those, or make a new run"
    )


def _read(named: NamedObjects) -> Begun | None:
    found = named.get(BEGUN, BEGUN_BYTES_MAX)
    if found is None:
        return None
    try:
        return msgspec.json.decode(found.data, type=Begun)
    except (msgspec.ValidationError, *UNREADABLE) as error:
        raise SnapshotRefused(f"{named.place}: {BEGUN} is none of ours: {error}") from error


def _told(begun: Begun, config: WorkerConfig) -> WorkerConfig:
    told = config.model_copy(update={"threads": begun.threads})
    return told if begun.grade == config.resolved.grade else graded_logical(told)


def _write(named: NamedObjects, order: RestoreOrder, told: WorkerConfig) -> None:
    begun = Begun(
        snapshot=order.snapshot,
        threads=told.threads,
        grade=told.resolved.grade,
        request=order.request or "",
    )
    data, before = msgspec.json.encode(begun), named.get(BEGUN, BEGUN_BYTES_MAX)
    if before is None:
        named.create(BEGUN, data)
    elif before.data != data:
        named.replace(BEGUN, data, before.tag)
