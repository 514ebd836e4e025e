"""``rollout snapshot create|prune|copy|export|import``: the commands that write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.cluster.options import ClusterFlag, ContextOption, NamespaceOption
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_note
from rollout.cli.runs import RunArgument
from rollout.cli.snapshot import clustered
from rollout.cli.snapshot.options import (
    EndpointOption,
    ObjectPathOption,
    RegionOption,
    SnapshotArgument,
    StoragePathOption,
    row_of,
    where_to_look,
)

if TYPE_CHECKING:
    from rollout.runs.snapshots.creating import Created
    from rollout.snapshots.signing import Signs

KEEP_LAST = 3


def create(
    run: RunArgument,
    *,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", min=0, help="The state after this step; default: the newest anchor's."
        ),
    ] = None,
    label: Annotated[
        str, typer.Option("--label", help="A name for people; kept by prune --keep-labeled.")
    ] = "",
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            help="process: an image of its learner, too, which stands still for it (spec.snapshots.include).",
            metavar="process",
        ),
    ] = None,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Take a snapshot of a run, live or over, from its newest anchor; prints its id, of a cluster its object's name."""
    import os

    from rollout.runs.snapshots.creating import create_snapshot
    from rollout.runs.snapshots.places import run_at
    from rollout.snapshots.signing import key_path, open_signer

    there = clustered.NamedCluster(cluster=cluster, context=context, namespace=namespace)
    if there.is_meant:
        opened = there.open(include=include)
        clustered.create(opened, run, step=step, label=label, output=output)
        return
    signer = open_signer(key_path(os.environ))
    if include:
        _require_process_alone(include, step)
        made = _create_with_image(run, signer, label)
    else:
        made = create_snapshot(run_at(run), signer, step=step, label=label)
    taken = made.manifest.header.step
    if step is None and taken != made.committed_step:
        print_note(
            f"this is the state after step {taken}; the run has committed {made.committed_step}"
        )
    if output is OutputFormat.json:
        print_json(row_of(made.manifest, made.place.where))
    else:
        print_line(made.manifest.id)


def _require_process_alone(include: list[str], step: int | None) -> None:
    from rollout.errors import SpecError
    from rollout.snapshots.layers.registry import TAKEN, require_kind

    kinds = {require_kind(one) for one in include}
    if kinds - {"process", *TAKEN}:
        raise SpecError(f"--include {', '.join(sorted(kinds))}: expected process")
    if "process" not in kinds:
        raise SpecError(
            f"--include {', '.join(sorted(kinds))}: {' and '.join(TAKEN)} are in every snapshot; leave it out"
        )
    if step is not None:
        raise SpecError(
            "--step goes without --include process: an image is of the step that the learner has come to"
        )


def _create_with_image(run: str, signer: Signs, label: str) -> Created:
    import os

    from rollout.runs.processes.learners import learner_imaged
    from rollout.runs.snapshots.creating import create_snapshot
    from rollout.runs.snapshots.places import place_of_run, run_at
    from rollout.snapshots.processes.criu import find_criu

    folder = run_at(run)
    place = place_of_run(folder)
    with learner_imaged(folder, place, find_criu(os.environ)) as image:
        return create_snapshot(
            folder, signer, step=image.step, label=label, place=place, beside=image.take
        )


def prune(
    *,
    run_id: Annotated[
        str, typer.Option("--run-id", help="The run: its UID, its name or its folder's name.")
    ],
    keep_last: Annotated[
        int, typer.Option("--keep-last", min=0, help="So many of the newest stay.")
    ] = KEEP_LAST,
    keep_labeled: Annotated[
        bool, typer.Option("--keep-labeled", help="Those with a label stay, too.")
    ] = False,
    storage_path: StoragePathOption = None,
    object_path: ObjectPathOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Remove a run's older snapshots, and the objects that nothing else needs; of a cluster their RolloutSnapshots."""
    from rollout.runs.snapshots.pruning import prune as remove

    there = clustered.NamedCluster(cluster=cluster, context=context, namespace=namespace)
    if there.is_meant:
        opened = there.open(storage_path=storage_path, object_path=object_path, endpoint=endpoint)
        clustered.prune(
            opened, run_id, keep_last=keep_last, keep_labeled=keep_labeled, output=output
        )
        return
    where = where_to_look(object_path, storage_path, endpoint, region)
    done = remove(where, run_id, keep_last=keep_last, keep_labeled=keep_labeled)
    if output is OutputFormat.json:
        removed = [{"id": one.id, "step": one.header.step} for one in done.removed]
        told = {"removed": removed, "kept": done.kept, "objects": done.num_objects}
        print_json({**told, "freed_bytes": done.freed_bytes, "left_to_run": done.left_to_run})
        return
    for one in done.removed:
        print_line(f"removed {one.id} step {one.header.step}")
    print_line(
        f"{len(done.removed)} removed, {done.kept} kept, {done.num_objects} objects and"
        f" {done.freed_bytes:,} bytes freed"
    )
    if done.left_to_run:
        print_note("the run is live, or not of this machine: it deletes the objects itself")


def copy(
    snapshot: SnapshotArgument,
    *,
    to: Annotated[
        str, typer.Option("--to", help="A folder or bucket of objects.", metavar="DIR|URI")
    ],
    storage_path: StoragePathOption = None,
    object_path: ObjectPathOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
) -> None:
    """Have another place hold a snapshot, too; what is there already is not stored again."""
    from rollout.runs.snapshots.places import WhereToLook, find_snapshot, open_object_path
    from rollout.snapshots.saving import copy_snapshot
    from rollout.snapshots.signing import check_signature

    source, target = (one if one and "://" in one else None for one in (object_path, to))
    where = WhereToLook(
        object_path=object_path,
        storage_path=storage_path,
        endpoint=endpoint if source else None,
        region=region if source else None,
    )
    found = find_snapshot(snapshot, where)
    check_signature(found.manifest)
    place = open_object_path(
        WhereToLook(
            object_path=to,
            endpoint=endpoint if target else None,
            region=region if target else None,
        ),
        must_exist=False,
    )
    stored = copy_snapshot(found.place.source, place.open(), found.manifest)
    print_line(f"{snapshot} is in {place.where}: {stored:,} bytes stored")


def export(
    snapshot: SnapshotArgument,
    *,
    to: Annotated[Path, typer.Option("--to", help="A file that is not there.", metavar="FILE")],
    storage_path: StoragePathOption = None,
    object_path: ObjectPathOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
) -> None:
    """Write a snapshot to one file, for where there is no common place."""
    from rollout.runs.snapshots.places import find_snapshot
    from rollout.snapshots.archive import write_archive
    from rollout.snapshots.signing import check_signature

    found = find_snapshot(snapshot, where_to_look(object_path, storage_path, endpoint, region))
    check_signature(found.manifest)
    size = write_archive(found.manifest, found.place.source, to)
    print_line(f"{to}: {size:,} bytes")


def import_(
    file: Annotated[Path, typer.Argument(help="A file that export has written.", metavar="FILE")],
    *,
    to: Annotated[
        str, typer.Option("--to", help="A folder or bucket of objects.", metavar="DIR|URI")
    ],
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", help="A key whose snapshots are taken, too.", metavar="KEY"),
    ] = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
) -> None:
    """Have a place hold the snapshot of a file; prints the snapshot's id."""
    from rollout.models.files import scratch_dir
    from rollout.runs.snapshots.places import WhereToLook, open_object_path
    from rollout.runs.snapshots.restoring import trusted_keys
    from rollout.snapshots.archive import read_archived_manifest, store_archive
    from rollout.snapshots.signing import require_trusted

    require_trusted(read_archived_manifest(file), trusted_keys(trust or ()))
    place = open_object_path(
        WhereToLook(object_path=to, endpoint=endpoint, region=region), must_exist=False
    )
    print_line(store_archive(file, place.open(), scratch_dir() / "imports").id)
