"""What a snapshot that lies somewhere already is, and whether this installation may believe it.

The manifest is found under its own id, its content comes to that id, a signer that is trusted vouches for it, and each of its
objects is there with its size. Their bytes are verified when a run begins with it, which asks for all of this once more.
"""

from __future__ import annotations

from rollout.errors import SnapshotRefused
from rollout.objects.places import open_bucket, open_named, parse_bucket
from rollout.objects.remote import Remote, key_of
from rollout.objects.retry import Operation, Patience, persist
from rollout.protocol import messages as m
from rollout.runs.snapshots.ordered import describe
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import find_manifest
from rollout.snapshots.signing import require_trusted
from rollout_api.worker import AdoptOrder, RestoreOrder


def adopt(order: AdoptOrder) -> m.SnapshotState:
    """What is told of the snapshot of an order. Raises SnapshotRefused, StoreError, SpecError."""
    named = open_named(order.place, endpoint=order.endpoint, region=order.region)
    manifest = find_manifest(named, order.snapshot)
    require_of_namespace(manifest, order, order.namespace)
    bucket = parse_bucket(order.place, endpoint=order.endpoint, region=order.region)
    require_objects(manifest, open_bucket(bucket))
    return describe(manifest, "Taken")


def require_of_namespace(manifest: Manifest, order: RestoreOrder, namespace: str) -> None:
    """Raise SnapshotRefused unless its signer is trusted and, of this installation, it is of this namespace."""
    signer = require_trusted(manifest, order.trusted)
    of = manifest.header.run.namespace
    if signer not in order.foreign and of != namespace:
        raise SnapshotRefused(
            f"snapshot {manifest.id} is of a run of namespace {of}, this is {namespace}: only snapshots of its own"
            " namespace, or of other installations that the runtime trusts, are taken"
        )


def require_objects(manifest: Manifest, remote: Remote, patience: Patience | None = None) -> None:
    """Raise SnapshotRefused, which names the first object that is not there or has another size."""
    for digest, size in manifest.objects.items():
        key = key_of(digest)
        operation = Operation(verb="find", digest=digest, place=remote.place)
        found = persist(patience or Patience(), operation, lambda key=key: remote.size(key))
        if found != size:
            what = "is not there" if found is None else f"has {found:,} bytes, expected {size:,}"
            raise SnapshotRefused(
                f"snapshot {manifest.id}: object {digest} {what} in {remote.place}: copy the snapshot there again"
            )
