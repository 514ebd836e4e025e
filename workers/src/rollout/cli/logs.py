"""``rollout logs``: what the processes of a run have written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rollout.cli.cluster.options import (
    ClusterFlag,
    ContextOption,
    LongNamespaceOption,
    names_cluster,
)
from rollout.cli.output import print_line

app = typer.Typer(help="Logs of a run's processes.", no_args_is_help=True)
POLL_SECONDS = 0.25


@app.command()
def tail(
    run: Annotated[str, typer.Argument(help="A run's name, its folder's name, or a path.")],
    *,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=0, max=100_000, help="Of each log, the last so many."),
    ] = 20,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")] = False,
    process: Annotated[
        str | None,
        typer.Option(
            "--process",
            help="Only this one: coordinator, actor-0, learner; of a cluster a role or a pod.",
        ),
    ] = None,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: LongNamespaceOption = None,
) -> None:
    """The end of each process's log: of a run of this machine, or of a cluster's pods."""
    if names_cluster(cluster=cluster, context=context, namespace=namespace):
        from rollout.cli.cluster.remote import print_logs

        print_logs(
            run, process=process, lines=lines, follow=follow, context=context, namespace=namespace
        )
        return
    from rollout.errors import SpecError
    from rollout.runs.run_dir import find_run

    folder = find_run(run) / "logs"
    paths = sorted(folder.glob(f"{process or '*'}.log"))
    if not paths:
        known = ", ".join(path.stem for path in sorted(folder.glob("*.log"))) or "none"
        raise SpecError(f"no log of {process or 'any process'} in {folder}; there are: {known}")
    offsets = {path: _print_end(path, lines) for path in paths}
    while follow:
        time.sleep(POLL_SECONDS)
        offsets = {path: _print_from(path, offset) for path, offset in offsets.items()}


def _print_end(path: Path, lines: int) -> int:
    text = path.read_bytes()
    for line in text.decode(errors="replace").splitlines()[-lines:] if lines else []:
        print_line(f"{path.stem}: {line}")
    return len(text)


def _print_from(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read()
    complete = text[: text.rfind(b"\n") + 1]
    for line in complete.decode(errors="replace").splitlines():
        print_line(f"{path.stem}: {line}")
    return offset + len(complete)
