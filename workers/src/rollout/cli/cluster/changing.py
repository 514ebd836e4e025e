"""``rollout submit``, ``suspend``, ``resume``, ``scale`` and ``delete``: what a person changes in a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.cluster.options import (
    ContextOption,
    NamespaceOption,
    ObjectArgument,
    open_cluster,
)
from rollout.cli.output import (
    FileOption,
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
)

if TYPE_CHECKING:
    from rollout.runs.manifest import Document


def submit(
    file: FileOption,
    *,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Override: train.maxSteps=50; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask the API server's admission, and make nothing.")
    ] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Validate the runs, snapshots and endpoints of a file, then make them in a cluster; none is replaced."""
    from rollout.cluster.kinds import kind_of

    documents = _read(file, sets or [])
    cluster = open_cluster(context, namespace)
    made = []
    for document in documents:
        kind = kind_of(document.data)
        assert kind is not None
        made.append(cluster.create(document.data, kind, dry_run=dry_run))
        if output is OutputFormat.text:
            done = "would be made" if dry_run else "made"
            print_line(
                f"{kind.name.lower()}/{made[-1]['metadata']['name']} {done} in {cluster.namespace}"
            )
    if output is OutputFormat.json:
        print_json(made)
    elif not dry_run:
        print_line(f"next: rollout wait {made[0]['metadata']['name']} --for Finished")


def suspend(
    name: ObjectArgument,
    *,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Save a run's state and give its pods back; of a sweep: of all its runs, and no more are made."""
    _set_suspended(name, context, namespace, output, suspended=True)


def resume(
    name: ObjectArgument,
    *,
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--from", help="Go back to this snapshot of the run first: a RolloutSnapshot's name."
        ),
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Let a suspended run go on where it stood, or from an earlier snapshot of its own; of a sweep: what was suspended with it."""
    if snapshot is None:
        _set_suspended(name, context, namespace, output, suspended=False)
        return
    from datetime import UTC, datetime

    from rollout.cluster.kinds import RUN, SNAPSHOT, Reference, parse_reference
    from rollout.cluster.returning import find_return
    from rollout.errors import SpecError

    reference = parse_reference(name)
    if reference.kind is not RUN:
        raise SpecError(f"{reference}: only runs go back to a snapshot")
    cluster = open_cluster(context, namespace)
    wanted = Reference(kind=SNAPSHOT, name=snapshot.removeprefix("snapshot/"))
    now = datetime.now(UTC).isoformat()
    change = find_return(cluster.get(reference), cluster.get(wanted), now)
    after = cluster.patch(reference, change)
    if output is OutputFormat.json:
        print_json(after)
        return
    print_line(
        f"{reference}: goes back to {wanted.name}; next: rollout wait {reference.name} --for Ready"
    )


def scale(
    name: ObjectArgument,
    replicas: Annotated[
        int, typer.Argument(min=0, max=10_000, help="How many actors, or replicas.")
    ],
    *,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Change the number of a run's actors, or of an endpoint's replicas; nothing else is touched."""
    from rollout.cluster.kinds import parse_reference
    from rollout.errors import SpecError

    reference = parse_reference(name)
    if not reference.kind.has_scale:
        raise SpecError(f"{reference}: only runs and endpoints can be scaled")
    answer = open_cluster(context, namespace).scale(reference, replicas)
    if output is OutputFormat.json:
        print_json(answer)
    else:
        print_line(f"{reference} asks for {replicas}")


def delete(
    name: ObjectArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Delete an object and what belongs to it; volumes and objects in buckets stay as their deletionPolicy says."""
    from rollout.cluster.kinds import parse_reference

    reference = parse_reference(name)
    cluster = open_cluster(context, namespace)
    found = cluster.get(reference)
    if not yes:
        where = f"{reference} in {cluster.namespace} of context {cluster.context}"
        typer.confirm(f"delete {where}?", abort=True, err=True)
    cluster.delete(reference, found["metadata"]["uid"])
    print_line(f"{reference} deleted")


def _set_suspended(
    name: str, context: str | None, namespace: str | None, output: OutputFormat, *, suspended: bool
) -> None:
    from rollout.cluster.kinds import RUN, parse_reference
    from rollout.errors import SpecError

    reference = parse_reference(name)
    told = (
        reference.name if reference.kind is RUN else f"{reference.kind.words[-2]}/{reference.name}"
    )
    word = "suspend" if suspended else "resume"
    if not reference.kind.has_suspend:
        raise SpecError(f"{reference}: only runs and sweeps can be suspended and resumed")
    cluster = open_cluster(context, namespace)
    before = cluster.get(reference)
    if bool(before["spec"].get("suspend")) == suspended:
        print_note(f"{reference} is to be {'suspended' if suspended else 'running'} already")
    after = cluster.patch(reference, {"spec": {"suspend": suspended}})
    if output is OutputFormat.json:
        print_json(after)
        return
    wanted = "Suspended" if suspended else "Ready"
    print_line(f"{reference}: {word} asked for; next: rollout wait {told} --for {wanted}")


def _read(file: str, sets: list[str]) -> list[Document]:
    """The documents to be made, valid. Raises SpecError, also for kinds that are not a user's to submit."""
    from rollout.cluster.kinds import KINDS, kind_of
    from rollout.errors import SpecError
    from rollout.runs.manifest import load_folder_or_file
    from rollout.runs.validation import apply_overrides, require_valid

    documents = [
        apply_overrides(document, sets)
        if sets and document.data.get("kind") == "RolloutRun"
        else document
        for document in load_folder_or_file(file)
    ]
    for document in documents:
        if kind_of(document.data) is None:
            known = ", ".join(kind.name for kind in KINDS)
            kind: Any = document.data.get("kind")
            raise SpecError(
                f"{document.source}: {kind} is not submitted by this command, which makes {known};"
                " kubectl apply -f makes everything"
            )
    for warning in require_valid(documents):
        print_note(str(warning))
    return documents
