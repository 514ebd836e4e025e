"""Removing what one RolloutSnapshot left in a bucket: its manifest, then the objects that nobody else names.

Only manifests that were made for that very object are removed (their label ends with its UID, and they are of its run), and
only objects of its run's own place: whatever an order says, nothing of another run or namespace is reached. Killed anywhere, the
next process of the same work ends it; another one, after the bound of ``collection``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rollout.runs.snapshots.pruning import named_by_ledger
from rollout.snapshots.collection import (
    Clock,
    Keep,
    delete_unnamed,
    finish_deletions,
    finish_work,
)
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import SnapshotPlace, list_manifests
from rollout_api.worker import PurgeOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """What went in this process; what one before it removed is not counted. ``kept``: objects that somebody else names.

    ``left_to_run``: the run goes on, and its objects are its own to delete.
    """

    snapshots: int
    objects: int
    freed_bytes: int
    kept: int
    left_to_run: bool

    def describe(self) -> str:
        """In one line, for people."""
        if self.left_to_run:
            return f"{self.snapshots} snapshots removed; their objects are left to the run, which goes on"
        return (
            f"{self.snapshots} snapshots and {self.objects} objects removed, {self.freed_bytes:,} bytes freed;"
            f" {self.kept} objects stay, which others name"
        )


def purge_snapshot(
    order: PurgeOrder, place: SnapshotPlace, keep: Keep, work: str, clock: Clock = time.time
) -> Purged:
    """Remove the snapshot of an order. Raises StoreError, LedgerError; a repeat goes on where this one stopped.

    ``keep`` gives what the run's ledger names; it is asked after the manifest has gone. ``work`` is as in ``Condemned``.
    """
    alive = order.ledger == "Alive"
    done = [finish_work(place, work, keep, clock)]
    if not alive:
        done.append(finish_deletions(place, keep, clock))
    mine = list(find_own(order, place))
    sizes = {name: size for one in mine for name, size in one.objects.items()}
    if mine:
        ids = [one.id for one in mine]
        objects = () if alive else set(sizes)
        done.append(
            delete_unnamed(place, objects, manifests=ids, keep=keep, clock=clock, work=work)
        )
    gone = {digest for one in done for digest in one.objects}
    return Purged(
        snapshots=len(mine),
        objects=len(gone),
        freed_bytes=sum(sizes.get(digest, 0) for digest in gone),
        kept=0 if alive else len(sizes.keys() - gone),
        left_to_run=alive,
    )


def find_own(order: PurgeOrder, place: SnapshotPlace) -> Iterable[Manifest]:
    """The manifests that were made for the order's object. Raises StoreError."""
    for one in list_manifests(place.named):
        if isinstance(one, Manifest) and _is_of(order, one):
            yield one


def named_in_ledger(order: PurgeOrder) -> Keep:
    """What the ledger of the order's run names, where there is one to ask."""
    if order.ledger != "Kept":
        return frozenset
    path = Path(order.ledger_path or "")
    return lambda: named_by_ledger(order.storage, path, order.run.uid)


def _is_of(order: PurgeOrder, manifest: Manifest) -> bool:
    run = manifest.header.run
    named = (run.namespace, run.uid) == (order.run.namespace, order.run.uid)
    return named and manifest.header.label.rpartition(" ")[2] == order.snapshot
