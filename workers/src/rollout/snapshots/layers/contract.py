"""What a layer is: it is taken from one moment of a run, and read back from its objects.

A layer names objects that the store has already, and hands over the bytes of those that it has not; it stores nothing
itself, so that a snapshot is complete or does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rollout.errors import StoreError
from rollout.ledger.cuts import LedgerCut
from rollout.ledger.records import AnchorManifest
from rollout.seams import ObjectSource
from rollout.snapshots.manifest import LayerKind, LayerRecord, RestoreScope, SnapshotGrade

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A run at the end of a step: its anchor, and its ledger as of then. ``source`` has the run's objects."""

    anchor: AnchorManifest
    cut: LedgerCut
    grade: SnapshotGrade
    source: ObjectSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A layer before it is stored: ``present`` objects by part, which the store has, ``made`` bytes by part."""

    kind: LayerKind
    grade: SnapshotGrade
    restore_scope: RestoreScope
    facts: Mapping[str, int]
    present: Mapping[str, str]
    made: Mapping[str, bytes]


class SnapshotLayer(Protocol[T_co]):
    """One layer of a snapshot."""

    @property
    def kind(self) -> LayerKind:
        """Its name in a manifest."""
        ...

    def take(self, moment: Moment) -> Taken:
        """What of this layer a snapshot at that moment holds. Raises StoreError for an object that is damaged."""
        ...

    def read(self, record: LayerRecord, source: ObjectSource) -> T_co:
        """The layer as a restore needs it. Raises StoreError or LedgerError for what is not whole."""
        ...


def read_part(record: LayerRecord, name: str, source: ObjectSource) -> bytes:
    """The verified bytes of a part. Raises StoreError."""
    return source.path(object_of(record, name)).read_bytes()


def object_of(record: LayerRecord, name: str) -> str:
    """The object of a part. Raises StoreError where the layer has none of the name."""
    for part in record.parts:
        if part.name == name:
            return part.object
    raise StoreError(f"layer {record.kind} has no part {name!r}: it was written by another version")
