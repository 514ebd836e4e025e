"""Whether a snapshot is whole: signature, root, and every byte of every object. Damage is told by layer, part and tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollout.errors import ObjectDamaged, ObjectMissing, StoreError
from rollout.seams import ObjectSource
from rollout.snapshots.layers.contract import read_part
from rollout.snapshots.layers.train_state import TENSORS
from rollout.snapshots.manifest import LayerRecord, Manifest, Part
from rollout.snapshots.tensors import TensorIndex, decode_index, find_damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One part that is not what was saved; ``tensors`` of it, where it holds any that are known."""

    layer: str
    part: str
    reason: str
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = f", tensors {', '.join(self.tensors)}" if self.tensors else ""
        return f"layer {self.layer}, part {self.part}{named}: {self.reason}"


def find_snapshot_damage(manifest: Manifest, source: ObjectSource) -> Iterator[Damage]:
    """Every part whose bytes are not those of its digest, or that is not there."""
    for layer in manifest.layers:
        index = _index(layer, source)
        for part in layer.parts:
            damage = _look(layer, part, source, index)
            if damage is not None:
                yield damage


def _look(
    layer: LayerRecord, part: Part, source: ObjectSource, index: TensorIndex
) -> Damage | None:
    try:
        size = source.path(part.object).stat().st_size
    except (ObjectMissing, ObjectDamaged) as error:
        return Damage(
            layer=layer.kind,
            part=part.name,
            reason=str(error),
            tensors=_tensors(error, part, index),
        )
    if size != part.size_bytes:
        return Damage(
            layer=layer.kind, part=part.name, reason=f"{size} bytes, not {part.size_bytes}"
        )
    return None


def _index(layer: LayerRecord, source: ObjectSource) -> TensorIndex:
    """What is known of the layer's tensors; nothing where that is damaged itself, which is told as its own part."""
    if not any(part.name == TENSORS for part in layer.parts):
        return {}
    try:
        return decode_index(read_part(layer, TENSORS, source))
    except StoreError:
        return {}


def _tensors(error: StoreError, part: Part, index: TensorIndex) -> tuple[str, ...]:
    if not isinstance(error, ObjectDamaged) or error.path is None or part.name not in index:
        return ()
    return tuple(find_damaged(error.path, index[part.name]))
