"""Making a snapshot: layers taken from one moment, their objects made durable, one manifest committed last.

Killed anywhere, there is either the whole snapshot or none; a repeat stores what is missing and commits. An object that
the store has is not stored again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollout.errors import ObjectMissing
from rollout.objects.bulk import name_parts
from rollout.seams import ObjectSource
from rollout.snapshots.collection import pinned
from rollout.snapshots.layers.contract import Taken
from rollout.snapshots.manifest import LayerRecord, Manifest, Part, SnapshotHeader, build_manifest
from rollout.snapshots.place import SnapshotPlace, commit_manifest
from rollout.snapshots.signing import Signs


def save_snapshot(
    place: SnapshotPlace, header: SnapshotHeader, taken: Sequence[Taken], signer: Signs
) -> Manifest:
    """The snapshot of these layers, durable and signed. Raises StoreError, ObjectMissing for what was deleted meanwhile."""
    named = [(layer, _objects(layer)) for layer in taken]
    with pinned(place.named, {digest for _, objects in named for digest in objects.values()}):
        layers = [_store(place, layer, objects) for layer, objects in named]
        return commit_manifest(place.named, signer.sign(build_manifest(header, layers)))


def copy_snapshot(source: ObjectSource, target: SnapshotPlace, manifest: Manifest) -> int:
    """Have another place hold a snapshot, under its signature; bytes that had to be stored. Raises StoreError."""
    stored = 0
    with pinned(target.named, manifest.objects):
        for digest, size in manifest.objects.items():
            if not target.store.has(digest):
                target.store.put_file(source.path(digest))
                stored += size
        commit_manifest(target.named, manifest)
    return stored


def _objects(taken: Taken) -> dict[str, str]:
    """Every object of a layer, by part."""
    return {**taken.present, **{name: name_parts([data]) for name, data in taken.made.items()}}


def _store(place: SnapshotPlace, taken: Taken, objects: Mapping[str, str]) -> LayerRecord:
    for data in taken.made.values():
        place.store.put(data)
    parts = [_part(place, name, digest) for name, digest in objects.items()]
    return LayerRecord(
        kind=taken.kind,
        grade=taken.grade,
        restore_scope=taken.restore_scope,
        facts=dict(taken.facts),
        parts=tuple(parts),
    )


def _part(place: SnapshotPlace, name: str, digest: str) -> Part:
    if not place.store.has(digest):
        raise ObjectMissing(
            f"object {digest} ({name}) was deleted while its snapshot was made: the run keeps newer"
            " anchors; create the snapshot again"
        )
    return Part(name=name, object=digest, size_bytes=place.store.path(digest).stat().st_size)
