"""The snapshot that a run begins with: whether it is durable, and where a run of this namespace may read it. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout_api.conditions import Reason
from rollout_api.names import SNAPSHOT_MANIFESTS
from rollout_api.places import parse_snapshot
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.v1alpha1.snapshot import SnapshotStatus
from rollout_api.v1alpha1.storage import RestoreFrom, SnapshotObject
from rollout_api.worker import RestoreOrder
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.upstreams import OBJECTS, STRAY_SHOWN_MAX, Readable
from rollout_operator.run.render.contract import RUN_FOLDER

LOST = frozenset({"Missing", "Failed"})
"""States of an object that may have been there before: a run that has begun with it needs it no more."""

OWN_VOLUME = f"file://{RUN_FOLDER}/objects"
"""Where a coordinator finds what lies on its own volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSource:
    """A snapshot as a run sees it. ``id`` is 64 hex, ``place`` has the objects, where it is durable.

    ``name`` is that of a RolloutSnapshot; empty for one that is named by its location. ``Volume``: it lies on the volume of
    another run's coordinator. ``Stray``: where this run may not read.
    """

    name: str
    state: Literal["Missing", "Waiting", "Failed", "Volume", "Stray", "Taken"]
    id: str = ""
    place: str = ""
    message: str = ""


def find_source(
    name: str, status: Mapping[str, Any] | None, readable: Readable, *, deleting: bool = False
) -> RestoreSource:
    """What the status of a RolloutSnapshot says to a run; None where there is no such object."""
    if status is None:
        return RestoreSource(name=name, state="Missing")
    if deleting:
        return RestoreSource(name=name, state="Failed", message="it is being deleted")
    said = {one["type"]: one for one in status.get("conditions") or ()}
    ready, failed = said.get("Ready", {}), said.get("Failed", {})
    if failed.get("status") == "True":
        return RestoreSource(name=name, state="Failed", message=failed.get("message", ""))
    if ready.get("status") != "True":
        return RestoreSource(name=name, state="Waiting", message=ready.get("message", ""))
    try:
        known = {field.alias or one for one, field in SnapshotStatus.model_fields.items()}
        parsed = SnapshotStatus.model_validate({k: v for k, v in status.items() if k in known})
    except ValueError as error:
        return RestoreSource(
            name=name, state="Failed", message=f"its status cannot be read: {error}"
        )
    location = parsed.location
    if location is not None and location.object is not None:
        return _of_bucket(name, parsed, location.object.uri, readable)
    volume = None if location is None else location.volume
    if volume is None or volume.claim_name != readable.volume:
        return RestoreSource(name=name, state="Volume")
    return RestoreSource(name=name, state="Taken", id=_id(parsed), place=OWN_VOLUME)


def source_at(given: SnapshotObject, readable: Readable) -> RestoreSource:
    """A snapshot that is named by its location: whose bytes it has is asked by the run that begins with it."""
    found = parse_snapshot(given)
    if found is None or not readable.allows(found.place):
        return RestoreSource(name="", state="Stray", message=given.uri[:STRAY_SHOWN_MAX])
    return RestoreSource(name="", state="Taken", id=found.id, place=found.place)


def _of_bucket(name: str, status: SnapshotStatus, uri: str, readable: Readable) -> RestoreSource:
    place, marked, _ = uri.rpartition(f"/{SNAPSHOT_MANIFESTS}")
    uid = status.run.uid if status.run is not None else None
    held = uid is not None and readable.holds(f"{place}{OBJECTS}0", uid)
    if not marked or not (held or (status.run is None and readable.allows(place))):
        return RestoreSource(name=name, state="Stray", message=uri[:STRAY_SHOWN_MAX])
    return RestoreSource(name=name, state="Taken", id=_id(status), place=place)


def _id(status: SnapshotStatus) -> str:
    return (status.digest or "").partition(":")[2]


def told_before(source: RestoreSource, order: str | None, spec: Mapping[str, Any]) -> RestoreSource:
    """What the attempt before was told of the same wish, though its object is gone; ``source`` where it was told of none.

    ``order`` (JSON) is a record's. Whether the run has begun since, and needs nothing more of it, its coordinator finds out.
    """
    before = {} if order is None else json.loads(order)
    told = before.get("restore")
    was, now = ({**(one.get("restoreFrom") or {})} for one in (before.get("spec", {}), spec))
    asked_before, asked = was.pop("request", None), now.pop("request", None)
    if told is None or was != now or asked not in (None, asked_before):
        return source
    return RestoreSource(name=source.name, state="Taken", id=told["snapshot"], place=told["place"])


def order_restore(
    source: RestoreSource, wanted: RestoreFrom | None, runtime: RuntimeSpec, own: Collection[str]
) -> RestoreOrder:
    """What the coordinator is told of a snapshot that is there. ``own``: our signers."""
    return RestoreOrder(
        snapshot=source.id,
        place=source.place,
        trusted=(*own, *runtime.trusted_signers),
        foreign=foreign_signers(runtime, own),
        request=None if wanted is None else wanted.request,
    )


def foreign_signers(runtime: RuntimeSpec, own: Collection[str]) -> tuple[str, ...]:
    """Other installations that a runtime trusts. Our own key is never one: its snapshots stay in their namespaces."""
    return tuple(one for one in runtime.trusted_signers if one not in own)


def check_restore(source: RestoreSource) -> Blocked | None:
    """Why the run may not begin yet, or never."""
    name = source.name
    match source.state:
        case "Taken":
            return None
        case "Missing":
            return Blocked(
                reason=Reason.REFERENCE_NOT_FOUND,
                message=f"RolloutSnapshot {name!r} does not exist in this namespace (snapshotRef)",
                retry_seconds=10,
            )
        case "Waiting":
            words = (
                f"waits for RolloutSnapshot {name}: {source.message or 'nothing is said of it yet'}"
            )
            return Blocked(reason=Reason.WAITING_FOR_SNAPSHOT, message=words, stalled=False)
        case "Failed":
            words = f"RolloutSnapshot {name} has failed ({source.message}); name another one"
            return Blocked(reason=Reason.WAITING_FOR_SNAPSHOT, message=words)
        case "Volume":
            words = (
                f"RolloutSnapshot {name} lies on the volume of its run, which no other run mounts: keep objects in"
                " a bucket (storage.uri) in the run that is saved"
            )
            return Blocked(reason=Reason.NOT_SUPPORTED, message=words)
        case "Stray":
            who = f"RolloutSnapshot {name}" if name else "restoreFrom.object"
            words = (
                f"{who} lies at {source.message!r}, expected below <storage.uri>/<namespace>/ of"
                " this run or its runtime, or in what the runtime's spec.allowed.storage names"
            )
            return Blocked(reason=Reason.NOT_ALLOWED, message=words)
