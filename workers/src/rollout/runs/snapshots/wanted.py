"""Which snapshots the runs of a manifest begin with: the one that ``--resume`` names, or what each run says itself.

Each is found, trusted and read before the first run starts. A run that has begun needs its snapshot no more, and is held to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rollout.errors import SnapshotRefused, SpecError
from rollout.runs.prepare import PreparedRun
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import read_restored
from rollout.runs.snapshots.places import WhereToLook
from rollout.runs.snapshots.restoring import Restore, prepare_restore
from rollout.snapshots.manifest import is_snapshot_id
from rollout_api.places import SNAPSHOT_EXPECTED, SnapshotAt, parse_snapshot

FIELD = "spec.restoreFrom.object"


def find_restores(
    runs: Sequence[PreparedRun], resume: str | None, where: WhereToLook, *, in_place: bool = False
) -> dict[str, Restore]:
    """The snapshots that new runs begin with, by the name of the run. Raises SpecError, SnapshotRefused, StoreError.

    ``in_place``: the one that ``resume`` names is what a run goes back to, whatever that run began with. Nothing is looked for where ``resume`` names a run, or the newest: those that have begun may need none.
    """
    if resume is None:
        found = {one.name: find_wanted(one, where) for one in runs}
        return {name: restore for name, restore in found.items() if restore is not None}
    if not is_snapshot_id(resume):
        return {}
    if len(runs) > 1:
        raise SpecError(
            f"--resume {resume}: a snapshot is of one run, and this file has {len(runs)}: take the one that"
            " it is of into a file of its own"
        )
    wanted = _wanted(runs[0])
    if wanted is not None and wanted.id != resume and not in_place:
        raise SpecError(f"--resume {resume}: {FIELD} names {wanted.id}: leave one out")
    return {runs[0].name: prepare_restore(resume, where)}


def choose_restore(
    prepared: PreparedRun,
    earlier: RunDir | None,
    restores: Mapping[str, Restore],
    where: WhereToLook,
) -> Restore | None:
    """What a run begins with, or goes back to in the folder of ``earlier``; None where it begins with its model, or goes on.

    ``restores`` are those of ``find_restores``. Raises SpecError, SnapshotRefused, StoreError.
    """
    if earlier is not None:
        require_begun_with(earlier, prepared)
        return restores.get(prepared.name)
    return restores.get(prepared.name) or find_wanted(prepared, where)


def find_wanted(prepared: PreparedRun, where: WhereToLook) -> Restore | None:
    """The snapshot that a run names by its location; None where it begins with its model.

    ``where`` says whom to trust and, where the run's storage does not, how the store is reached.
    Raises SpecError, SnapshotRefused, StoreError.
    """
    wanted = _wanted(prepared)
    if wanted is None:
        return None
    storage = prepared.spec.storage
    lies = replace(
        where,
        object_path=wanted.place,
        storage_path=None,
        endpoint=where.endpoint or (storage.endpoint if storage is not None else None),
        region=where.region or (storage.region if storage is not None else None),
    )
    try:
        return prepare_restore(wanted.id, lies)
    except SnapshotRefused as error:
        raise SnapshotRefused(f"{FIELD}: {wanted.place}: {error}") from error


def require_begun_with(run: RunDir, prepared: PreparedRun) -> None:
    """Raise SpecError where a run that is gone on with began with something else than it names."""
    wanted = _wanted(prepared)
    if wanted is None or (begun := read_restored(run)) == wanted.id:
        return
    raise SpecError(
        f"{FIELD}: names snapshot {wanted.id}, and run {run.name} has begun with"
        f" {f'snapshot {begun}' if begun else 'its model'}: start a new run without --resume"
    )


def _wanted(prepared: PreparedRun) -> SnapshotAt | None:
    given = prepared.spec.restore_from
    if given is None or given.object is None:
        return None
    found = parse_snapshot(given.object)
    if found is None:
        raise SpecError(f"{FIELD}: {given.object.uri}: {SNAPSHOT_EXPECTED}")
    return found
