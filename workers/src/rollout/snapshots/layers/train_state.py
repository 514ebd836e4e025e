"""The learner's whole state at a step: an anchor and the objects that it names, as they lie in the run's store.

Also the digest of each tensor, so that damage is told by its name. Every object is verified before it is vouched for.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.errors import StoreError
from rollout.ledger.records import AnchorManifest
from rollout.seams import ObjectSource
from rollout.snapshots.layers.contract import Moment, Taken, object_of, read_part
from rollout.snapshots.manifest import LayerKind, LayerRecord
from rollout.snapshots.tensors import encode_index, index_tensors

ANCHOR, TENSORS, OBJECT, VERSION = "anchor", "tensors", "state/", "version/"


class TrainState:
    """Weights, optimizer, random states, schedules, controllers and the place in the data; of every rank."""

    kind: LayerKind = "train_state"

    def take(self, moment: Moment) -> Taken:
        """As the contract says."""
        objects = objects_of_anchor(moment.anchor)
        index = {
            name: tensors
            for name, digest in objects.items()
            if (tensors := index_tensors(moment.source.path(digest))) is not None
        }
        return Taken(
            kind=self.kind,
            grade=moment.grade,
            restore_scope="anywhere",
            facts={"tensors": sum(len(one) - 1 for one in index.values())},
            present=objects,
            made={
                ANCHOR: msgspec.json.encode(moment.anchor, order="sorted"),
                TENSORS: encode_index(index),
            },
        )

    def read(self, record: LayerRecord, source: ObjectSource) -> AnchorManifest:
        """The anchor, which names objects of this layer and no others."""
        try:
            anchor = msgspec.json.decode(read_part(record, ANCHOR, source), type=AnchorManifest)
        except (msgspec.ValidationError, *UNREADABLE) as error:
            raise StoreError(f"layer {self.kind}: part {ANCHOR} is no anchor: {error}") from error
        for name, digest in objects_of_anchor(anchor).items():
            if object_of(record, name) != digest:
                raise StoreError(f"layer {self.kind}: its anchor names another object as {name}")
        return anchor


def objects_of_anchor(anchor: AnchorManifest) -> Mapping[str, str]:
    """Every object that an anchor needs, by the name of its part."""
    versions = {f"{VERSION}{i}": digest for i, digest in enumerate(anchor.version.objects)}
    return {f"{OBJECT}{name}": digest for name, digest in anchor.objects.items()} | versions
