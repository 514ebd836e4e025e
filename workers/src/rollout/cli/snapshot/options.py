"""Options that the snapshot commands share, and how a snapshot is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rollout.runs.snapshots.places import Found, WhereToLook
    from rollout.snapshots.manifest import Manifest, SnapshotHeader

SnapshotArgument = Annotated[
    str, typer.Argument(help="A snapshot's id: 64 hex digits.", metavar="ID")
]
ObjectPathOption = Annotated[
    str | None,
    typer.Option(
        "--object-path",
        help="A folder or bucket of objects; default: those of the runs under ROLLOUT_HOME.",
        metavar="DIR|URI",
    ),
]
StoragePathOption = Annotated[
    str | None,
    typer.Option("--storage-path", help="A run's folder, or the ledger in it.", metavar="PATH"),
]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", help="The S3 server's address; default: the cloud's.")
]
RegionOption = Annotated[str | None, typer.Option("--region", help="The bucket's region.")]


def where_to_look(
    object_path: str | None, storage_path: str | None, endpoint: str | None, region: str | None
) -> WhereToLook:
    """What the options say. Raises SpecError for options that contradict each other."""
    from rollout.errors import SpecError
    from rollout.runs.snapshots.places import WhereToLook

    if (endpoint or region) and object_path is None:
        raise SpecError("--endpoint and --region are of a bucket: name it with --object-path")
    return WhereToLook(
        object_path=object_path, storage_path=storage_path, endpoint=endpoint, region=region
    )


def reason_of(header: SnapshotHeader) -> str:
    """Why a snapshot is graded as it is, where it says so."""
    return header.reason if isinstance(header.reason, str) else ""


def row_of(manifest: Manifest, where: str) -> dict[str, Any]:
    """One snapshot as a row of a list."""
    header = manifest.header
    return {
        "id": manifest.id,
        "run": header.run.name,
        "run_id": header.run.uid,
        "algorithm": header.run.algorithm,
        "lineage": header.lineage,
        "step": header.step,
        "chain": header.chain,
        "grade": header.grade,
        **({"reason": why} if (why := reason_of(header)) else {}),
        "label": header.label,
        "kinds": [layer.kind for layer in manifest.layers],
        "layer_bytes": {layer.kind: layer.size_bytes for layer in manifest.layers},
        "created_at": datetime.fromtimestamp(header.created_at, UTC).isoformat(),
        "size_bytes": manifest.size_bytes,
        "signer": None if manifest.signature is None else manifest.signature.signer,
        "place": where,
    }


def document_of(found: Found, *, trusted: bool) -> dict[str, Any]:
    """All that is known of a snapshot, but the single objects of its layers' samples."""
    import msgspec

    manifest, header = found.manifest, found.manifest.header
    layers = [
        {
            "kind": layer.kind,
            "digest": layer.digest,
            "grade": layer.grade,
            "restore_scope": layer.restore_scope,
            "size_bytes": layer.size_bytes,
            "num_parts": len(layer.parts),
            "facts": layer.facts,
        }
        for layer in manifest.layers
    ]
    return {
        **row_of(manifest, found.place.where),
        "trusted": trusted,
        "layers": layers,
        "runtime": header.runtime,
        "restored_from": header.restored_from or None,
        "spec_digest": header.run.spec_digest,
        "contents": header.run.contents,
        "dtype": header.run.dtype,
        "threads": header.run.threads,
        "identity": msgspec.to_builtins(header.run.identity),
    }
