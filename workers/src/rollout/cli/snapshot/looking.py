"""``rollout snapshot list|show|verify|diff``: what there is, and whether it is whole. Nothing is written."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rollout.cli.cluster.options import ClusterFlag, ContextOption, NamespaceOption
from rollout.cli.outcomes import print_fact
from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
)
from rollout.cli.snapshot import clustered
from rollout.cli.snapshot.options import (
    EndpointOption,
    ObjectPathOption,
    RegionOption,
    SnapshotArgument,
    StoragePathOption,
    document_of,
    reason_of,
    row_of,
    where_to_look,
)

LIMIT = 100
CHANGES_SHOWN = 20


def list_snapshots(
    *,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", help="Of this run only: its UID, its name or its folder's name."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="Those that hold train_state, buffer, process or episodic_memory."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = LIMIT,
    storage_path: StoragePathOption = None,
    object_path: ObjectPathOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.json,
) -> None:
    """The snapshots there are, newest first: those of this machine or a place, or a cluster's by its objects."""
    from rollout.runs.snapshots.catalogue import list_catalogue
    from rollout.snapshots.layers.registry import require_kind

    wanted = None if kind is None else require_kind(kind)
    there = clustered.NamedCluster(cluster=cluster, context=context, namespace=namespace)
    if there.is_meant:
        opened = there.open(storage_path=storage_path, object_path=object_path, endpoint=endpoint)
        clustered.list_snapshots(opened, run_id=run_id, kind=wanted, limit=limit, output=output)
        return
    where = where_to_look(object_path, storage_path, endpoint, region)
    listed = list_catalogue(where, run_id=run_id, kind=wanted)
    for one in listed.unreadable:
        print_note(f"left out: {one}")
    rows = [row_of(one.manifest, one.place.where) for one in listed.found[:limit]]
    if output is OutputFormat.json:
        print_json(rows)
    elif not rows:
        print_line("no snapshots here; make one with: rollout snapshot create RUN")
    else:
        for row in rows:
            label = f"  {row['label']}" if row["label"] else ""
            size = "" if wanted is None else f"  {row['layer_bytes'][wanted]:,} bytes of {wanted}"
            print_line(f"{row['id']}  {row['run']} step {row['step']}  {row['grade']}{size}{label}")
            if row.get("reason"):
                print_line(f"  {row['grade']}: {row['reason']}")


def show(
    snapshot: SnapshotArgument,
    *,
    storage_path: StoragePathOption = None,
    object_path: ObjectPathOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.json,
) -> None:
    """One snapshot: its layers, its run, what it was computed on, and who vouches for it; in a cluster also by its object's name."""
    from rollout.runs.snapshots.places import find_snapshot
    from rollout.runs.snapshots.restoring import trusted_keys
    from rollout.snapshots.signing import check_signature

    there = clustered.NamedCluster(cluster=cluster, context=context, namespace=namespace)
    if there.is_meant:
        opened = there.open(storage_path=storage_path, object_path=object_path, endpoint=endpoint)
        clustered.show(opened, snapshot, output)
        return
    found = find_snapshot(snapshot, where_to_look(object_path, storage_path, endpoint, region))
    signer = check_signature(found.manifest)
    shown = document_of(found, trusted=signer in trusted_keys(()))
    if output is OutputFormat.json:
        print_json(shown)
        return
    print_line(shown["id"])
    for name in ("run", "run_id", "step", "lineage", "chain", "grade", "label", "created_at"):
        print_fact(name, str(shown[name]))
    if shown.get("reason"):
        print_fact("reason", str(shown["reason"]))
    for name in ("size_bytes", "signer", "trusted", "restored_from", "place"):
        print_fact(name, str(shown[name]))
    for layer in shown["layers"]:
        facts = ", ".join(f"{count} {name}" for name, count in layer["facts"].items())
        print_fact(layer["kind"], f"{layer['size_bytes']:,} bytes, {layer['grade']}: {facts}")


def verify(
    snapshot: SnapshotArgument,
    *,
    storage_path: StoragePathOption = None,
    object_path: ObjectPathOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Whether a snapshot is whole: signature, root and every byte. Exit code 1 names layer, part and tensor of the damage."""
    from rollout.errors import ObjectDamaged
    from rollout.runs.snapshots.places import find_snapshot
    from rollout.snapshots.signing import check_signature
    from rollout.snapshots.verifying import find_snapshot_damage

    found = find_snapshot(snapshot, where_to_look(object_path, storage_path, endpoint, region))
    signer = check_signature(found.manifest)
    damage = list(find_snapshot_damage(found.manifest, found.place.source))
    if output is OutputFormat.json:
        told = [
            {"layer": d.layer, "part": d.part, "tensors": list(d.tensors), "reason": d.reason}
            for d in damage
        ]
        print_json({"id": snapshot, "whole": not damage, "signer": signer, "damage": told})
    elif not damage:
        print_line(f"{snapshot} is whole: {found.manifest.size_bytes:,} bytes, signed by {signer}")
    if damage:
        raise ObjectDamaged(f"snapshot {snapshot} is damaged: {'; '.join(map(str, damage[:3]))}")


def verify_resume(
    snapshot: SnapshotArgument,
    *,
    steps: Annotated[
        int,
        typer.Option("--steps", min=1, help="Take at most so many of the steps after it again."),
    ] = 1_000_000,
    storage_path: StoragePathOption = None,
    object_path: ObjectPathOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Go on from a snapshot on the batches that its run recorded, and compare each chain value; exit code 1 where one differs.

    The learner alone is taken again: nothing is sampled, and nothing of the run changes.
    """
    from itertools import islice

    from rollout.debug.replay import replay_recorded
    from rollout.errors import SpecError
    from rollout.runs.snapshots.places import find_snapshot

    found = find_snapshot(snapshot, where_to_look(object_path, storage_path, None, None))
    run, step = found.place.run, found.manifest.header.step
    why = reason_of(found.manifest.header)
    if run is None:
        raise SpecError(
            f"snapshot {snapshot}: its run's ledger is not beside it in {found.place.where}: nothing to compare"
            " with; name the run's folder with --storage-path"
        )
    start, *lines = islice(replay_recorded(run.path, after=step), steps + 1)
    if (start["step"], start["chain"]) != (step, found.manifest.header.chain):
        raise SpecError(
            f"snapshot {snapshot} is of step {step}, and run {run.name} does not keep that anchor any more"
            f" (it begins at step {start['step']}): restore the snapshot, and compare the two runs"
        )
    equal = all(line["equal"] for line in (start, *lines))
    differs = next((line["step"] for line in lines if not line["equal"]), None)
    if output is OutputFormat.json:
        print_json(
            {
                "id": snapshot,
                "equal": equal,
                "compared": "the learner, on recorded batches",
                **({"grade": "logical", "reason": why} if why else {}),
                "from_step": step,
                "steps": [
                    {name: line[name] for name in ("step", "equal", "chain")} for line in lines
                ],
            }
        )
    else:
        said = "each chain value is the committed one" if equal else f"step {differs} DIFFERS"
        print_line(f"{len(lines)} steps from step {step} taken again on recorded batches: {said}")
        if why:
            print_line(f"graded logical: {why}")
    raise typer.Exit(0 if equal else 1)


def diff(
    before: Annotated[str, typer.Argument(help="A snapshot's id.", metavar="ID")],
    after: Annotated[str, typer.Argument(help="Another snapshot's id.", metavar="ID")],
    *,
    storage_path: StoragePathOption = None,
    object_path: ObjectPathOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """What two snapshots do not share: header, settings, parts by layer, tensors."""
    from rollout.runs.snapshots.catalogue import compare
    from rollout.runs.snapshots.places import find_snapshot

    where = where_to_look(object_path, storage_path, endpoint, region)
    found = compare(find_snapshot(before, where), find_snapshot(after, where))
    if output is OutputFormat.json:
        print_json(found)
    else:
        _print_difference(found)


def _print_difference(found: dict[str, Any]) -> None:
    if found["equal"]:
        print_line("equal")
        return
    for name, (old, new) in found["header"].items():
        print_fact(name, f"{old} -> {new}")
    for kind, layer in found["layers"].items():
        shared = f"{layer['shared_bytes']:,} bytes shared, {layer['new_bytes']:,} new"
        print_fact(kind, f"{shared}, {len(layer['changed'])} parts changed")
        for part in layer["changed"][:CHANGES_SHOWN]:
            print_line(f"    {part}")
    for part, names in found["tensors"].items():
        more = f" and {len(names) - CHANGES_SHOWN} more" if len(names) > CHANGES_SHOWN else ""
        print_fact(part, f"tensors {', '.join(names[:CHANGES_SHOWN])}{more}")
