"""``rollout wait``: until a condition of an object holds, or cannot come any more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.cluster.options import (
    ContextOption,
    NamespaceOption,
    ObjectArgument,
    open_cluster,
)
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_note
from rollout.errors import KubeError, ObjectNotFound, RunFailed

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster
    from rollout.cluster.kinds import Reference
    from rollout.cluster.waiting import Wait

POLL_SECONDS = 2.0
SILENT_MAX = 30
"""Calls in a row that the API server may leave unanswered."""


def wait(
    name: ObjectArgument,
    *,
    wanted: Annotated[
        str, typer.Option("--for", help="A condition: Finished, Complete, Ready, Suspended=False.")
    ] = "Finished",
    seconds: Annotated[
        float, typer.Option("--timeout", min=1, max=30 * 86400, help="In seconds.")
    ] = 3600.0,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Wait for a condition; exit code 1 when it cannot come any more, 4 when it has not come in time."""
    from rollout.cluster.kinds import parse_reference

    reference = parse_reference(name)
    cluster = open_cluster(context, namespace)
    found = _until(cluster, reference, wanted, seconds)
    if output is OutputFormat.json:
        print_json({"object": str(reference), "for": wanted, "met": found.met, "why": found.why})
    if not found.met:
        raise RunFailed(f"{reference}: {wanted} cannot come any more: {found.why}")
    if output is OutputFormat.text:
        print_line(f"{reference}: {found.why}")


def _until(cluster: Cluster, reference: Reference, wanted: str, seconds: float) -> Wait:
    """Look every two seconds; calls that are not answered are made again, up to SILENT_MAX in a row."""
    deadline, told, silent = time.monotonic() + seconds, "", 0
    while time.monotonic() < deadline:
        found = _look(cluster, reference, wanted, may_be_silent=silent < SILENT_MAX)
        silent = silent + 1 if found is None else 0
        if found is not None and found.met is not None:
            return found
        if found is not None and found.why != told:
            told = found.why
            print_note(f"{reference}: {told}")
        time.sleep(POLL_SECONDS)
    raise KubeError(f"{reference}: {wanted} has not come within {seconds:g} s; {told}")


def _look(
    cluster: Cluster, reference: Reference, wanted: str, *, may_be_silent: bool
) -> Wait | None:
    """What is so now; None where the API server does not answer. Raises ObjectNotFound."""
    from rollout.cluster.waiting import judge

    try:
        return judge(cluster.get(reference), wanted)
    except ObjectNotFound:
        raise
    except KubeError as error:
        if not may_be_silent:
            raise
        print_note(f"asking again: {error}")
        return None
