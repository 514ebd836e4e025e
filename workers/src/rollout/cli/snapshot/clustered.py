"""``rollout snapshot create|list|show|prune --cluster``: by the objects of a cluster; bytes are reached where ``place`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout.cli.cluster.options import names_cluster, open_cluster
from rollout.cli.outcomes import print_fact
from rollout.cli.output import OutputFormat, print_json, print_line, print_note

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster
    from rollout.cluster.objects import Object


class NamedCluster:
    """What the three options of a cluster say; ``is_meant``: that a cluster is."""

    def __init__(self, *, cluster: bool, context: str | None, namespace: str | None) -> None:
        self.is_meant = names_cluster(cluster=cluster, context=context, namespace=namespace)
        self._context, self._namespace = context, namespace

    def open(self, **local: object) -> Cluster:
        """The cluster. Raises SpecError where an option that is of this machine's places was given, too."""
        from rollout.errors import SpecError

        given = [f"--{name.replace('_', '-')}" for name, value in local.items() if value]
        if given:
            raise SpecError(
                f"{', '.join(given)} and --cluster: a cluster is asked for its objects; leave one of them out"
            )
        return open_cluster(self._context, self._namespace)


def create(
    cluster: Cluster, run: str, *, step: int | None, label: str, output: OutputFormat
) -> None:
    """Ask for a snapshot of a run at work; prints the name of the object that stands for it."""
    from rollout.cluster.kinds import RUN, SNAPSHOT, parse_reference
    from rollout.cluster.snapshots import build_snapshot, row_of_object
    from rollout.errors import SpecError

    reference = parse_reference(run)
    if reference.kind is not RUN:
        raise SpecError(f"{reference}: a snapshot is of a run")
    document = build_snapshot(cluster.get(reference), step=step, label=label)
    made = cluster.create(document, SNAPSHOT)
    if output is OutputFormat.json:
        print_json(row_of_object(made))
        return
    name = made["metadata"]["name"]
    print_line(f"snapshot/{name}")
    print_note(f"asked for; next: rollout wait snapshot/{name} --for Complete")


def list_snapshots(
    cluster: Cluster, *, run_id: str | None, kind: str | None, limit: int, output: OutputFormat
) -> None:
    """Those of the namespace, newest first."""
    from rollout.cluster.snapshots import list_rows

    rows = list_rows(_read(cluster), run_id=run_id, kind=kind)[:limit]
    if output is OutputFormat.json:
        print_json(rows)
    elif not rows:
        print_line(
            f"no snapshots in namespace {cluster.namespace}; make one with: rollout snapshot create RUN --cluster"
        )
    else:
        for row in rows:
            print_line(_line(row, kind))


def show(cluster: Cluster, given: str, output: OutputFormat) -> None:
    """One, by its id or the name of its object."""
    from rollout.cluster.snapshots import find_object, row_of_object

    found = find_object(_read(cluster), given)
    row = row_of_object(found)
    if output is OutputFormat.json:
        print_json({**row, "conditions": found.get("status", {}).get("conditions", [])})
        return
    print_line(row["id"] or f"snapshot/{row['name']}")
    for name, value in row.items():
        if name not in ("id", "kinds", "layer_bytes") and value not in (None, ""):
            print_fact(name, str(value))
    for kind, size in row["layer_bytes"].items():
        print_fact(kind, f"{size:,} bytes")


def prune(
    cluster: Cluster, run_id: str, *, keep_last: int, keep_labeled: bool, output: OutputFormat
) -> None:
    """Delete the objects of a run's older snapshots; bytes go with those that say ``deletionPolicy: Delete``."""
    from rollout.cluster.kinds import SNAPSHOT, Reference
    from rollout.cluster.snapshots import plan_prune, purged_bytes, row_of_object

    found = _read(cluster)
    going, kept = plan_prune(found, run_id, keep_last=keep_last, keep_labeled=keep_labeled)
    for one in going:
        reference = Reference(kind=SNAPSHOT, name=one["metadata"]["name"])
        cluster.delete(reference, one["metadata"]["uid"])
    rows = [row_of_object(one) for one in going]
    purged = purged_bytes(going)
    if output is OutputFormat.json:
        removed = [{name: row[name] for name in ("id", "name", "step")} for row in rows]
        print_json({"removed": removed, "kept": kept, "purged_bytes_max": purged})
        return
    for row in rows:
        print_line(f"removed {row['id']} step {row['step']} (snapshot/{row['name']})")
    print_line(f"{len(rows)} removed, {kept} kept; at most {purged:,} bytes go with them")
    if any(row["deletion_policy"] != "Delete" for row in rows):
        print_note(
            "bytes of those without deletionPolicy: Delete stay in their bucket; remove them with: rollout snapshot prune"
            " --object-path PLACE"
        )


def _read(cluster: Cluster) -> list[Object]:
    from rollout.cluster.kinds import SNAPSHOT

    return [*cluster.objects(SNAPSHOT)]


def _line(row: dict[str, Any], kind: str | None) -> str:
    label = f"  {row['label']}" if row["label"] else ""
    size = "" if kind is None else f"  {row['layer_bytes'][kind]:,} bytes of {kind}"
    step = "" if row["step"] is None else f" step {row['step']}"
    why = f": {row['reason']}" if row["state"] != "Complete" and row["reason"] else ""
    return (
        f"{row['id'] or '-'}  {row['name']}  {row['run']}{step}  {row['state']}{why}{size}{label}"
    )
