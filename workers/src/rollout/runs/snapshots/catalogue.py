"""All snapshots of some places in one list, and what two of them do not share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rollout.errors import StoreError
from rollout.runs.snapshots.places import Found, WhereToLook, list_places
from rollout.snapshots.layers.contract import read_part
from rollout.snapshots.layers.train_state import TENSORS
from rollout.snapshots.manifest import LayerKind, LayerRecord, Manifest, RunFacts, SnapshotHeader
from rollout.snapshots.place import list_manifests
from rollout.snapshots.tensors import TensorIndex, decode_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The snapshots of some places, newest first, and what could not be read there."""

    found: tuple[Found, ...]
    unreadable: tuple[str, ...]


def list_catalogue(
    where: WhereToLook, *, run_id: str | None = None, kind: LayerKind | None = None
) -> Catalogue:
    """Every snapshot that ``where`` has, of a run by its UID, name or folder. Raises SpecError, StoreError."""
    found: list[Found] = []
    unreadable: list[str] = []
    for place in list_places(where):
        folder = None if place.run is None else place.run.name
        for one in list_manifests(place.named):
            if not isinstance(one, Manifest):
                unreadable.append(f"{place.where}/{one.name}: {one.reason}")
            elif _is_of(one, run_id, folder) and (kind is None or one.layer(kind) is not None):
                found.append(Found(manifest=one, place=place))
    found.sort(key=_age, reverse=True)
    return Catalogue(found=tuple(found), unreadable=tuple(unreadable))


def compare(before: Found, after: Found) -> dict[str, Any]:
    """Headers, settings, parts and tensors that are not the same, by name. Raises StoreError."""
    old, new = before.manifest, after.manifest
    kinds = sorted({layer.kind for layer in (*old.layers, *new.layers)})
    layers = {kind: _compare_layers(old.layer(kind), new.layer(kind)) for kind in kinds}
    changed = {kind: one for kind, one in layers.items() if one["changed"]}
    return {
        "equal": old.id == new.id,
        "header": _compare_headers(old.header, new.header),
        "layers": changed,
        "tensors": _compare_tensors(before, after),
    }


def _age(found: Found) -> tuple[float, int, str]:
    header = found.manifest.header
    return header.created_at, header.step, found.manifest.id


def _is_of(manifest: Manifest, run_id: str | None, folder: str | None) -> bool:
    run = manifest.header.run
    return run_id is None or run_id in {run.uid, run.name, folder}


def _compare_headers(old: SnapshotHeader, new: SnapshotHeader) -> dict[str, list[Any]]:
    def flat(header: SnapshotHeader) -> dict[str, Any]:
        found = {
            name: getattr(header, name)
            for name in SnapshotHeader.__struct_fields__
            if name != "run"
        }
        run = {f"run.{n}": getattr(header.run, n) for n in RunFacts.__struct_fields__}
        return {**found, **run}

    one, two = flat(old), flat(new)
    return {name: [one[name], two[name]] for name in one if one[name] != two[name]}


def _compare_layers(old: LayerRecord | None, new: LayerRecord | None) -> dict[str, Any]:
    one, two = _objects(old), _objects(new)
    known = {digest for digest, _ in one.values()}
    fresh = {digest: size for digest, size in two.values() if digest not in known}
    shared = {digest: size for digest, size in two.values() if digest in known}
    return {
        "changed": sorted(n for n in {*one, *two} if one.get(n) != two.get(n)),
        "shared_bytes": sum(shared.values()),
        "new_bytes": sum(fresh.values()),
    }


def _objects(layer: LayerRecord | None) -> Mapping[str, tuple[str, int]]:
    parts = () if layer is None else layer.parts
    return {part.name: (part.object, part.size_bytes) for part in parts}


def _compare_tensors(before: Found, after: Found) -> dict[str, list[str]]:
    """Tensors of the train state whose bytes are not the same, by part."""
    old, new = _index(before), _index(after)
    found: dict[str, list[str]] = {}
    for part in sorted({*old, *new}):
        one = {tensor.name: tensor.blake3 for tensor in old.get(part, ())}
        two = {tensor.name: tensor.blake3 for tensor in new.get(part, ())}
        names = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
        if names:
            found[part] = names
    return found


def _index(found: Found) -> TensorIndex:
    layer = found.manifest.layer("train_state")
    if layer is None:
        return {}
    try:
        return decode_index(read_part(layer, TENSORS, found.place.source))
    except (StoreError, msgspec.ValidationError) as error:
        raise StoreError(f"snapshot {found.manifest.id}: {error}") from error
