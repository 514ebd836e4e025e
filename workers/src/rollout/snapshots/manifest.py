"""The one document of a snapshot: what was saved, of which run, in which objects; its Merkle root is the snapshot's id.

    id    = root(header, layer, layer, ...)        layer = root(kind and facts, part, part, ...)
    part  = name, object (blake3), size            leaf  = blake3(0x00 | canonical JSON), node = blake3(0x01 | left | right)

Equal state has an equal id, wherever it lies; the signature stands beside the tree. Refuses what is not the document
of its own id, names twice, unknown fields and unknown formats: a manifest is read from places that others write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from blake3 import blake3

from rollout.common.bounded import UNREADABLE
from rollout.errors import SnapshotRefused, StoreError
from rollout.ledger.records import Record
from rollout.objects.reading import parse_name

MANIFEST_FORMAT = 1
"""Of the document and of what its parts hold; no other is read."""
MANIFEST_BYTES_MAX = 32 << 20
ID_CHARACTERS = 64

LayerKind = Literal["train_state", "buffer", "episodic_memory", "process"]
SnapshotGrade = Literal["exact", "logical"]
RestoreScope = Literal["anywhere", "sameNodeClass", "sameNode"]


class Part(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One object of a layer; ``object`` is ``blake3:<64 hex>``."""

    name: str
    object: str
    size_bytes: int


class LayerRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer: ``grade`` is what a restore on the same runtime gives, ``restore_scope`` where it may be restored.

    ``facts`` are counts for people. ``digest`` is the root over all of it.
    """

    kind: LayerKind
    grade: SnapshotGrade
    restore_scope: RestoreScope
    facts: dict[str, int]
    parts: tuple[Part, ...]
    digest: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of its objects, one that stands under two names counted once."""
        return sum({part.object: part.size_bytes for part in self.parts}.values())


class RunFacts(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run that was saved. ``identity`` decides tokens and parameters, ``contents`` are digests by the field they fill."""

    name: str
    namespace: str
    uid: str
    algorithm: str
    spec_digest: str
    identity_format: int
    identity: dict[str, Any]
    contents: dict[str, str]
    dtype: str
    threads: int


class SnapshotHeader(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a snapshot is of: the state after ``step``, whose hash chain is ``chain``.

    ``runtime`` is where the state was computed, ``created_at`` Unix seconds, ``restored_from`` the snapshot that the run began with.
    ``reason`` is why the grade is what it is, where the numbers alone do not say so; unset, nothing of it is written.
    """

    created_at: float
    label: str
    run: RunFacts
    lineage: int
    step: int
    chain: str
    grade: SnapshotGrade
    runtime: dict[str, str]
    restored_from: str = ""
    reason: str | msgspec.UnsetType = msgspec.UNSET


class Signature(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who vouches for a snapshot: ``signer`` is ``ed25519:<64 hex>``, ``value`` 128 hex digits."""

    signer: str
    value: str


class Manifest(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot."""

    format: int
    id: str
    header: SnapshotHeader
    layers: tuple[LayerRecord, ...]
    signature: Signature | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its objects, each counted once."""
        return sum(self.objects.values())

    @property
    def objects(self) -> dict[str, int]:
        """Every object that it needs, and its bytes."""
        return {part.object: part.size_bytes for layer in self.layers for part in layer.parts}

    def layer(self, kind: LayerKind) -> LayerRecord | None:
        """The layer of this kind, None where there is none."""
        return next((one for one in self.layers if one.kind == kind), None)


_ROLES: dict[type[Record], str] = {SnapshotHeader: "header", LayerRecord: "facts", Part: "part"}
"""What stands in front of a leaf: no record can pass for one of another role."""


def build_manifest(header: SnapshotHeader, layers: Sequence[LayerRecord]) -> Manifest:
    """The unsigned manifest over these layers, whose digests and id are computed here."""
    sealed = tuple(_sealed(layer) for layer in sorted(layers, key=lambda one: one.kind))
    root = _root([_leaf(header), *map(_leaf, sealed)])
    return Manifest(format=MANIFEST_FORMAT, id=root, header=header, layers=sealed)


def encode_manifest(manifest: Manifest) -> bytes:
    """The document."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1) + b"\n"


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The manifest of a document. Raises SnapshotRefused for what is none, StoreError for one that was changed."""
    try:
        found = msgspec.json.decode(data)
        said = found.get("format") if isinstance(found, dict) else None
        if said != MANIFEST_FORMAT:
            raise SnapshotRefused(
                f"{where}: a snapshot of format {said!r}, this version of rollout reads {MANIFEST_FORMAT}:"
                " use the version that wrote it"
            )
        manifest = msgspec.convert(found, Manifest)
    except (msgspec.ValidationError, *UNREADABLE) as error:
        raise SnapshotRefused(f"{where}: not a snapshot's manifest: {error}") from error
    _check(manifest, where)
    return manifest


def is_snapshot_id(text: str) -> bool:
    """Whether a text has the form of a snapshot's id."""
    return len(text) == ID_CHARACTERS and set(text) <= set("0123456789abcdef")


def _check(manifest: Manifest, where: str) -> None:
    kinds = [layer.kind for layer in manifest.layers]
    if len(set(kinds)) != len(kinds) or not kinds:
        raise SnapshotRefused(f"{where}: expected one layer of each kind, got {kinds}")
    sizes: dict[str, int] = {}
    for layer in manifest.layers:
        names = [part.name for part in layer.parts]
        if len(set(names)) != len(names):
            raise SnapshotRefused(f"{where}: layer {layer.kind} names a part twice")
        for part in layer.parts:
            parse_name(part.object)
            if (
                part.size_bytes < 0
                or sizes.setdefault(part.object, part.size_bytes) != part.size_bytes
            ):
                raise SnapshotRefused(f"{where}: {layer.kind}/{part.name} has no plain size")
    if build_manifest(manifest.header, manifest.layers).layers != manifest.layers:
        raise StoreError(
            f"{where}: a layer's parts are not those of its digest: the manifest was changed"
        )
    if (expected := build_manifest(manifest.header, manifest.layers).id) != manifest.id:
        raise StoreError(
            f"{where}: its content has the root {expected}, it says {manifest.id}: the manifest was changed;"
            " restore it from a copy"
        )


def _sealed(layer: LayerRecord) -> LayerRecord:
    bare = msgspec.structs.replace(layer, parts=(), digest="")
    parts = sorted(layer.parts, key=lambda part: part.name)
    root = _root([_leaf(bare), *map(_leaf, parts)])
    return msgspec.structs.replace(layer, parts=tuple(parts), digest=root)


def _leaf(record: Record) -> bytes:
    return blake3(b"\x00" + msgspec.json.encode(_named(record), order="sorted")).digest()


def _named(record: Record) -> Any:
    """A layer stands in the tree by its digest: a proof of one layer needs no part of another."""
    if isinstance(record, LayerRecord) and record.digest:
        return {"layer": record.kind, "digest": record.digest}
    return {_ROLES[type(record)]: record}


def _root(leaves: Sequence[bytes]) -> str:
    row = list(leaves)
    while len(row) > 1:
        pairs = zip(row[::2], row[1::2], strict=False)
        joined = [blake3(b"\x01" + left + right).digest() for left, right in pairs]
        row = joined + row[len(row) & ~1 :]
    return row[0].hex()
