"""The pod that purges a deleted snapshot: ``python -m rollout.entrypoints.errands.purge``; the order is in ``ROLLOUT_PURGE_ORDER``.

It ends when its work is done, or has failed: what became of it is the container's termination message. A Job starts
the next one, no earlier than this one has ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rollout.entrypoints.errands.sent import read_errand, run_errand
from rollout.errors import SpecError
from rollout.models.files import scratch_dir
from rollout.objects.opening import open_place
from rollout.objects.places import open_named
from rollout.runs.snapshots.purging import Purged, named_in_ledger, purge_snapshot
from rollout.snapshots.place import SnapshotPlace
from rollout_api.worker import PurgeOrder

ORDER_VARIABLE = "ROLLOUT_PURGE_ORDER"
WORK_VARIABLE = "ROLLOUT_PURGE_WORK"
"""UID of the Job, of which only one pod is at work at a time; empty where nobody says so."""


def main() -> int:
    """Purge one snapshot; the exit code."""
    return run_errand(lambda: purge(os.environ).describe())


def purge(environment: Mapping[str, str]) -> Purged:
    """Do what the order says. Raises SpecError, StoreError, LedgerError."""
    order = read_order(environment)
    place = open_snapshot_place(order)
    keep = named_in_ledger(order)
    keep()  # a ledger that cannot be read is found out before anything has gone
    return purge_snapshot(order, place, keep, environment.get(WORK_VARIABLE, ""))


def read_order(environment: Mapping[str, str]) -> PurgeOrder:
    """The order. Raises SpecError."""
    return read_errand(environment, ORDER_VARIABLE, PurgeOrder, "purge a snapshot")


def open_snapshot_place(order: PurgeOrder) -> SnapshotPlace:
    """The place of the order's run. Raises SpecError, StoreError."""
    storage, uid = order.storage, order.run.uid
    if storage.uri is None:
        raise SpecError("storage.uri is not set: a snapshot on a run's volume is not purged")
    named = open_named(
        f"{storage.uri.rstrip('/')}/{uid}",
        endpoint=storage.endpoint,
        region=storage.region,
        kms_key=storage.kms_key,
    )
    folder: Path = scratch_dir() / "purge"
    return SnapshotPlace(store=open_place(storage, uid, folder), named=named)


if __name__ == "__main__":
    sys.exit(main())
