"""``rollout endpoint history`` and ``rollback``: what an endpoint has served, and going back to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.cluster.options import ContextOption, NamespaceOption, open_cluster
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_table

if TYPE_CHECKING:
    from rollout.cluster.kinds import Reference

app = typer.Typer(help="Endpoints of a cluster: what they have served.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(help="Name of the endpoint.", metavar="NAME")]


@app.command("history")
def history(
    name: NameArgument,
    *,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """The revisions of an endpoint, the newest first: model, since when it served last, and who is answered by it now."""
    from rollout.cluster.objects import REVISION_COLUMNS, dig, revision_rows

    reference = _refer(name)
    found = open_cluster(context, namespace).get(reference)
    if output is OutputFormat.json:
        print_json(dig(found, "status.revisions") or [])
        return
    rows = revision_rows(found, datetime.now(UTC))
    if not rows:
        print_line(f"{reference} has no revision yet: rollout describe endpoint/{name}")
        return
    print_table(REVISION_COLUMNS, rows)
    if held := dig(found, "spec.rollbackTo"):
        print_line(
            f"spec.rollbackTo holds it at {held}; next: rollout endpoint rollback {name} --cancel"
        )


@app.command("rollback")
def rollback(
    name: NameArgument,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", help="A revision of `history`. Unset: what served before what serves now."
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Serve what the rest of the spec says again.")
    ] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Let an endpoint serve an earlier revision, unmeasured and whole, until `--cancel`; no request is lost."""
    from rollout.cluster.objects import find_rollback
    from rollout.errors import SpecError

    if cancel and to is not None:
        raise SpecError("--to and --cancel: give one of them")
    reference = _refer(name)
    cluster = open_cluster(context, namespace)
    wanted = None if cancel else find_rollback(cluster.get(reference), to)
    after = cluster.patch(reference, {"spec": {"rollbackTo": wanted}})
    if output is OutputFormat.json:
        print_json(after)
        return
    told = f"goes back to {wanted}" if wanted else "serves what its spec says"
    print_line(f"{reference} {told}; next: rollout wait {reference} --for Ready")


def _refer(name: str) -> Reference:
    """Also ``endpoint/NAME``, as other commands write it. Raises SpecError for another kind."""
    from rollout.cluster.kinds import ENDPOINT, Reference, parse_reference
    from rollout.errors import SpecError

    if "/" not in name:
        return Reference(kind=ENDPOINT, name=name)
    reference = parse_reference(name)
    if reference.kind is not ENDPOINT:
        raise SpecError(f"{name}: expected the name of an endpoint")
    return reference
