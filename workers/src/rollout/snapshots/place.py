"""A place that holds snapshots: objects by digest, and beside them what has a name (manifests, pins, condemnations).

Everything that is known of a place's snapshots lies in the place: any installation that may read it can list it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollout.errors import PreconditionFailed, RolloutError, SnapshotRefused, StoreError
from rollout.objects.named.contract import NamedObjects
from rollout.seams import ObjectStore
from rollout.snapshots.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    encode_manifest,
    is_snapshot_id,
    parse_manifest,
)
from rollout_api.names import SNAPSHOT_MANIFESTS

FOLDER = "snapshots/"
SUFFIX = ".json"
COMMITS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlace:
    """Objects and names of one place; ``store`` keeps objects under their digest."""

    store: ObjectStore
    named: NamedObjects


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A document that stands among the manifests and cannot be read; ``reason`` says why."""

    name: str
    reason: str


def commit_manifest(named: NamedObjects, manifest: Manifest) -> Manifest:
    """Make a snapshot exist, by one conditional put; the one that exists where somebody was first. Raises StoreError."""
    for _ in range(COMMITS_MAX):
        try:
            named.create(_name(manifest.id), encode_manifest(manifest))
        except PreconditionFailed:
            found = look_up(named, manifest.id)
            if found is not None:
                return found  # else it was removed meanwhile, and may be made again
        else:
            return manifest
    raise StoreError(
        f"{named.place}: snapshot {manifest.id} is made and removed by others all the time; try again"
    )


def find_manifest(named: NamedObjects, snapshot: str) -> Manifest:
    """A snapshot by its id. Raises SnapshotRefused where there is none, StoreError for one that was changed."""
    found = look_up(named, snapshot)
    if found is None:
        raise not_found(snapshot)
    return found


def look_up(named: NamedObjects, snapshot: str) -> Manifest | None:
    """As ``find_manifest``; None where there is none."""
    if not is_snapshot_id(snapshot):
        raise not_found(snapshot)
    found = named.get(_name(snapshot), MANIFEST_BYTES_MAX)
    if found is None:
        return None
    manifest = parse_manifest(found.data, f"{named.place}/{_name(snapshot)}")
    if manifest.id != snapshot:
        raise SnapshotRefused(f"{named.place}: the manifest of {snapshot} is that of {manifest.id}")
    return manifest


def list_manifests(named: NamedObjects) -> Iterator[Manifest | Unreadable]:
    """Every snapshot of a place, in the order of ids. Raises StoreError where it cannot be listed."""
    for entry in named.entries(SNAPSHOT_MANIFESTS):
        snapshot = entry.name.removeprefix(SNAPSHOT_MANIFESTS).removesuffix(SUFFIX)
        if not is_snapshot_id(snapshot):
            yield Unreadable(name=entry.name, reason="not the name of a snapshot")
            continue
        try:
            found = look_up(named, snapshot)
        except RolloutError as error:
            yield Unreadable(name=entry.name, reason=str(error))
        else:
            if found is not None:
                yield found


def remove_manifest(named: NamedObjects, snapshot: str) -> None:
    """Make a snapshot not exist; nothing where it does not. Its objects stay."""
    found = named.get(_name(snapshot), MANIFEST_BYTES_MAX)
    if found is not None:
        named.delete(_name(snapshot), found.tag)


def not_found(snapshot: str) -> SnapshotRefused:
    """The error of an id that nothing has."""
    return SnapshotRefused(f"snapshot not found: {snapshot}")


def _name(snapshot: str) -> str:
    return f"{SNAPSHOT_MANIFESTS}{snapshot}{SUFFIX}"
