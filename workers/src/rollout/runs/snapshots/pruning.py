"""Letting snapshots go: which, and which of their objects nobody else needs.

In the objects of a run only what neither its ledger nor another snapshot names is deleted, and only while the run is over;
of a run that is live the snapshots go, and the run deletes their objects itself with what else it does not need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollout.errors import SpecError
from rollout.ledger.opening import open_reader
from rollout.ledger.records import LedgerState
from rollout.runs.run_dir import RunDir, RunLock
from rollout.runs.snapshots.catalogue import list_catalogue
from rollout.runs.snapshots.places import Found, KnownPlace, WhereToLook, list_places, read_config
from rollout.snapshots.collection import CONDEMNED, Deleted, delete_unnamed, finish_deletions
from rollout.snapshots.layers.train_state import objects_of_anchor
from rollout.snapshots.manifest import Manifest
from rollout_api.v1alpha1.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What went: snapshots, how many objects and bytes. ``left_to_run``: their objects are a live run's to delete."""

    removed: tuple[Manifest, ...]
    kept: int
    num_objects: int
    freed_bytes: int
    left_to_run: bool


def prune(where: WhereToLook, run_id: str, *, keep_last: int, keep_labeled: bool) -> Pruned:
    """Remove a run's snapshots but the newest ``keep_last``; a repeat ends what was cut short. Raises SpecError, StoreError."""
    listed = list_catalogue(where, run_id=run_id).found
    victims = plan_prune(listed, keep_last=keep_last, keep_labeled=keep_labeled)
    gone: dict[str, int] = {}
    left = False
    for place in list_places(where):
        here = [one for one in victims if one.place.where == place.where]
        sizes = {name: size for one in here for name, size in one.manifest.objects.items()}
        with _ownership(place, here) as mine:
            left |= bool(here) and not mine
            for digest in _delete(place, here, sizes, mine=mine):
                gone[digest] = sizes.get(digest, 0)
    return Pruned(
        removed=tuple(one.manifest for one in victims),
        kept=len(listed) - len(victims),
        num_objects=len(gone),
        freed_bytes=sum(gone.values()),
        left_to_run=left,
    )


def plan_prune(listed: Sequence[Found], *, keep_last: int, keep_labeled: bool) -> tuple[Found, ...]:
    """Those of the newest-first list that go. One that lies in several places counts once."""
    order = list(dict.fromkeys(one.manifest.id for one in listed))
    kept = set(order[:keep_last])
    return tuple(
        one
        for one in listed
        if one.manifest.id not in kept and not (keep_labeled and one.manifest.header.label)
    )


def _delete(
    place: KnownPlace, here: Sequence[Found], sizes: dict[str, int], *, mine: bool
) -> tuple[str, ...]:
    opened = place.open() if here or place.run is None or _has_leftovers(place) else None
    run = place.run

    def keep() -> set[str]:
        return set() if run is None else _named_by(run)

    done: list[Deleted] = []
    if mine and opened is not None:
        done.append(finish_deletions(opened, keep))
    if here and opened is not None:
        ids = [one.manifest.id for one in here]
        done.append(delete_unnamed(opened, set(sizes) if mine else (), manifests=ids, keep=keep))
    return tuple(digest for one in done for digest in one.objects)


def _has_leftovers(place: KnownPlace) -> bool:
    """Whether a deleter that died has left something to finish."""
    return next(iter(place.named.entries(CONDEMNED)), None) is not None


@contextmanager
def _ownership(place: KnownPlace, here: Sequence[Found]) -> Iterator[bool]:
    """Whether objects of the place may be deleted here: nobody else deletes or stores them while it lasts."""
    if place.run is None:
        # A run's own place that is not of this machine: its run may live elsewhere.
        yield not any(one.manifest.header.run.uid == place.uid for one in here)
        return
    lock = RunLock(place.run)
    try:
        lock.acquire(leftovers_seconds_max=0.0)
    except SpecError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _named_by(run: RunDir) -> set[str]:
    """Every object that the ledger of a run names. Raises LedgerError."""
    config = read_config(run)
    return named_by_ledger(config.spec.storage, run.ledger, config.run.uid)


def named_by_ledger(storage: Storage | None, path: Path, uid: str) -> set[str]:
    """Every object that a ledger names, which lies at ``path`` or in a database. Raises SpecError, LedgerError."""
    with open_reader(storage, path, uid) as ledger:
        state: LedgerState = ledger.state()
    anchors = (*state.anchors, *state.dead_anchors)
    versions = [*state.versions, *([state.initial] if state.initial else [])]
    if state.head is not None:
        versions.append(state.head.version)
    found = {digest for anchor in anchors for digest in objects_of_anchor(anchor).values()}
    found |= {digest for version in versions for digest in version.objects}
    return found | {f"blake3:{place.rpartition('/')[2]}" for place in state.handed}
