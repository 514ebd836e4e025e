"""A run that deletes its own objects, beside those who take snapshots of it.

Most of what a run deletes no snapshot can name: versions of which there never was an anchor, nor an evaluation. That goes
at once. The rest goes as ``collection`` says, and stays while a snapshot names it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from rollout.errors import StoreError
from rollout.objects.named.contract import NamedObjects
from rollout.seams import ObjectStore
from rollout.snapshots.collection import delete_unnamed, named_objects
from rollout.snapshots.place import FOLDER, SnapshotPlace

log = logging.getLogger(__name__)


class SnapshotGuard:
    """The objects of one run's store that a snapshot may name."""

    def __init__(self, store: ObjectStore, named: NamedObjects) -> None:
        self._place = SnapshotPlace(store=store, named=named)
        self._reachable: set[str] = set()

    def note(self, objects: Iterable[str]) -> None:
        """A snapshot may name these from now on: they are of an anchor, or of a version that is evaluated."""
        self._reachable.update(objects)

    def named(self) -> set[str]:
        """What snapshots of the run name now. Raises StoreError where that cannot be known."""
        return named_objects(self._place.named)

    def delete(self, objects: Collection[str]) -> None:
        """Delete what no snapshot names; what one does, or may, stays until somebody collects it. Raises StoreError."""
        wanted = set(objects)
        for digest in sorted(wanted - self._reachable):
            self._place.store.delete(digest)
        self._delete_reachable(wanted & self._reachable)

    def _delete_reachable(self, objects: set[str]) -> None:
        if not objects:
            return
        try:
            gone = delete_unnamed(self._place, objects).objects
        except StoreError as error:
            if self._holds_any():
                log.warning("objects that snapshots may name stay: %s", error)
                return
            # A place that keeps no conditions takes no snapshots either: nobody can name anything there.
            gone = tuple(sorted(objects))
            for digest in gone:
                self._place.store.delete(digest)
        self._reachable.difference_update(gone)

    def _holds_any(self) -> bool:
        try:
            return next(iter(self._place.named.entries(FOLDER)), None) is not None
        except StoreError:
            return True
