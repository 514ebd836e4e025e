"""Where a run's objects lie in a bucket: below its namespace, which no run chooses and no other run has. Pure.

A credential for ``<storage.uri>/<namespace>/`` reaches that namespace's runs and nobody else's, whoever wrote
``storage.uri``. Pods are told this place and never the one above it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollout_api.names import SNAPSHOT_MANIFESTS
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.storage import SnapshotObject

NAMESPACE = "$(namespace)"
"""Stands for the run's namespace in what a runtime says."""


def named_for(text: str, namespace: str) -> str:
    """A text of a runtime, for one namespace."""
    return text.replace(NAMESPACE, namespace)


def namespace_place(uri: str, namespace: str) -> str:
    """Where the objects of a namespace's runs lie below a ``storage.uri``."""
    return f"{uri.rstrip('/')}/{namespace}"


def run_place(uri: str, namespace: str, uid: str) -> str:
    """Where the objects of one run lie below a ``storage.uri``."""
    return f"{namespace_place(uri, namespace)}/{uid}"


def in_namespace(spec: RolloutRunSpec, namespace: str) -> RolloutRunSpec:
    """A spec as its pods have it: ``storage.uri`` is the namespace's place."""
    if spec.storage is None or spec.storage.uri is None:
        return spec
    place = {"uri": namespace_place(spec.storage.uri, namespace)}
    return spec.model_copy(update={"storage": spec.storage.model_copy(update=place)})


_SNAPSHOT = re.compile(r"blake3:(?P<id>[0-9a-f]{64})")
SNAPSHOT_EXPECTED = f"expected PLACE/{SNAPSHOT_MANIFESTS}ID.json and blake3:ID, of one ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAt:
    """A snapshot that is named by its location: its id, 64 hexadecimal digits, and the place of objects that has it."""

    id: str
    place: str


def parse_snapshot(given: SnapshotObject) -> SnapshotAt | None:
    """What a location names; None where ``uri`` and ``digest`` are not those of one manifest (``SNAPSHOT_EXPECTED``)."""
    place, marked, file = given.uri.rpartition(f"/{SNAPSHOT_MANIFESTS}")
    found = _SNAPSHOT.fullmatch(given.digest)
    if not marked or not place or found is None or file != f"{found['id']}.json":
        return None
    return SnapshotAt(id=found["id"], place=place)
