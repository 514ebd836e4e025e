"""``rollout get``, ``describe``, ``events`` and ``top``: what a cluster says of its objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.cluster.options import (
    ContextOption,
    NamespaceOption,
    ObjectArgument,
    open_cluster,
)
from rollout.cli.outcomes import print_fact
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_table

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster
    from rollout.cluster.objects import Object

POD_COLUMNS = ("POD", "ROLE", "PHASE", "READY", "RESTARTS", "NODE", "TROUBLE")
PROGRESS = (
    "step",
    "maxSteps",
    "policyVersion",
    "lineage",
    "rewardMean",
    "tokensPerSecond",
    "bottleneck",
    "mismatchKl",
    "staleness",
)


def get(
    what: Annotated[
        str, typer.Argument(help="run, snapshot, endpoint, sweep, or KIND/NAME.")
    ] = "run",
    *,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Of every namespace that may be read.")
    ] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """List runs, snapshots, endpoints or sweeps of a cluster, or show one of them."""
    from rollout.cluster.kinds import parse_kind, parse_reference
    from rollout.cluster.objects import columns, dig, row

    reference = parse_reference(what) if "/" in what else None
    kind = reference.kind if reference else parse_kind(what)
    cluster = open_cluster(context, namespace)
    found = (
        [cluster.get(reference)] if reference else cluster.objects(kind, everywhere=all_namespaces)
    )
    if output is OutputFormat.json:
        print_json(found[0] if reference else found)
        return
    if not found:
        place = "any namespace" if all_namespaces else f"namespace {cluster.namespace}"
        print_line(f"no {kind.plural} in {place} of context {cluster.context}")
        return
    now = datetime.now(UTC)
    rows = [row(kind, one, now) for one in found]
    if all_namespaces:
        rows = [
            [dig(one, "metadata.namespace"), *cells] for one, cells in zip(found, rows, strict=True)
        ]
    print_table(["NAMESPACE"] * all_namespaces + list(columns(kind)), rows)


def describe(
    name: ObjectArgument,
    *,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """One object: its conditions, how far it is, its pods, and what happened last; of a sweep its runs."""
    from rollout.cluster.kinds import parse_reference
    from rollout.cluster.objects import pod_state
    from rollout.cluster.reading import read_events, read_pods

    reference = parse_reference(name)
    cluster = open_cluster(context, namespace)
    found = cluster.get(reference)
    pods = read_pods(cluster, found)
    events = read_events(cluster, found, pods)
    if output is OutputFormat.json:
        print_json({"object": found, "pods": pods, "events": events})
        return
    print_line(f"{reference} in {cluster.namespace} ({cluster.context})")
    print_progress(found)
    print_conditions(found)
    _print_swept(found)
    print_pods([pod_state(pod) for pod in pods])
    print_line()
    print_events(events[-10:])


def events(
    name: ObjectArgument,
    *,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """What happened to an object and its pods, oldest first; the API server keeps an hour of it."""
    from rollout.cluster.kinds import parse_reference
    from rollout.cluster.reading import read_events, read_pods

    cluster = open_cluster(context, namespace)
    found = cluster.get(parse_reference(name))
    told = read_events(cluster, found, read_pods(cluster, found))
    if output is OutputFormat.json:
        print_json(told)
    elif not told:
        print_line("no events: the API server keeps them for an hour")
    else:
        print_events(told)


def top(
    name: ObjectArgument,
    *,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """How far a run is, and what its pods use of CPU and memory (from metrics-server, where there is one); of a sweep: its runs."""
    from rollout.cluster.kinds import parse_reference

    cluster = open_cluster(context, namespace)
    found = cluster.get(parse_reference(name))
    usage, why = _usage(cluster, found)
    if output is OutputFormat.json:
        status = found.get("status", {})
        told = {"progress": status.get("progress"), "pods": usage, "why": why}
        print_json(told | ({"runs": status["runs"]} if "runs" in status else {}))
        return
    print_line(name)
    print_progress(found)
    _print_swept(found)
    if usage:
        print_table(("POD", "CONTAINER", "CPU", "MEMORY"), _usage_rows(usage))
    else:
        print_fact("pods", why or "none has been measured yet")


def print_conditions(found: Object) -> None:
    """Every condition, with what it says; what one before it has said already is not repeated."""
    told: dict[str, str] = {}
    rows = []
    for one in found.get("status", {}).get("conditions", ()):
        kind, message = one["type"], one.get("message")
        before = told.setdefault(message, kind) if message else kind
        words = message if before == kind else f"(as {before})"
        rows.append((kind, one["status"], one.get("reason"), words))
    if rows:
        print_table(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows)
    else:
        print_line("no status yet: an operator has to serve this namespace")


def print_pods(pods: Iterable[Any]) -> None:
    """The pods of a run; nothing where there are none."""
    rows = [
        (pod.name, pod.role, pod.phase, pod.ready, pod.restarts, pod.node, pod.trouble or None)
        for pod in pods
    ]
    if rows:
        print_line()
        print_table(POD_COLUMNS, rows)


def print_progress(found: Object) -> None:
    """How far a run is, how long ago that was written, and what is saved of it; nothing where nothing is known."""
    progress = found.get("status", {}).get("progress") or {}
    told = [f"{name} {progress[name]}" for name in PROGRESS if name in progress]
    if written := progress.get("updateTime"):
        told.append(f"written {_ago(written, datetime.now(UTC))} ago")
    if told:
        print_fact("progress", ", ".join(told))
    for label, key in (("snapshot", "lastSnapshot"), ("best", "best")):
        if kept := found.get("status", {}).get(key):
            print_fact(label, f"{kept['name']} (step {kept['step']})")


def _ago(time: str, now: datetime) -> str:
    from rollout.cluster.objects import parse_time, short_duration

    return short_duration((now - parse_time(time)).total_seconds()) if time else "-"


def print_events(told: Sequence[Object]) -> None:
    """Events as rows, each with how long ago it was seen last, and how often."""
    from rollout.cluster.stuck import event_time, merge_events

    now = datetime.now(UTC)
    rows = [
        (
            _ago(event_time(one), now) + (f" x{count}" if count > 1 else ""),
            one.get("type"),
            one.get("reason"),
            one["involvedObject"]["name"],
            one.get("message"),
        )
        for one, count in merge_events(told)
    ]
    if rows:
        print_table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"), rows)


def _print_swept(found: Object) -> None:
    from rollout.cluster.sweeps import run_cells, run_columns, sweep_rows

    if rows := sweep_rows(found):
        print_line()
        print_table(run_columns(found), map(run_cells, rows))


def _usage(cluster: Cluster, found: Object) -> tuple[list[dict[str, Any]], str]:
    from rollout.cluster.kinds import SWEEP
    from rollout.cluster.objects import select_pods
    from rollout.cluster.sweeps import select_swept_pods, sweep_rows
    from rollout.errors import KubeError, ObjectNotFound

    selector = select_pods(found["metadata"]["uid"])
    if found.get("kind") == SWEEP.name:
        selector = select_swept_pods(sweep_rows(found))
    if not selector:
        return [], "no run of it is at work"
    try:
        return cluster.pod_usage(selector), ""
    except ObjectNotFound:
        return [], "what they use is not known: the cluster has no metrics-server"
    except KubeError as error:
        return [], f"what they use is not known: {error}"


def _usage_rows(usage: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (pod["metadata"]["name"], one["name"], one["usage"].get("cpu"), one["usage"].get("memory"))
        for pod in usage
        for one in pod.get("containers", ())
    ]
