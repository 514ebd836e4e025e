"""``rollout ui``: the runs of this machine, and a training service's models, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollout.cli.output import print_line


def ui(
    *,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", help="The folder with the runs; default: ROLLOUT_HOME, or runs."),
    ] = None,
    service: Annotated[
        Path | None,
        typer.Option(
            "--service",
            help="The folder of the training service whose models are shown; default: service in the folder with the runs.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="Of 127.0.0.1, where it listens; 0: a free one."
        ),
    ] = 8675,
) -> None:
    """Look at runs and at models of a training service in a browser on this machine, live or afterwards, until Ctrl-C; the link that is printed opens it."""
    import os

    from rollout.common.stacks import run_loop
    from rollout.console.serve import serve_console
    from rollout.errors import SpecError
    from rollout.runs.run_dir import runs_home
    from rollout.service.reading.finding import has_book

    home = (runs or runs_home(os.environ)).absolute()
    if runs is not None and not home.is_dir():
        raise SpecError(f"--runs {runs}: there is no such folder; give the one that holds the runs")
    if service is not None and not has_book(service):
        raise SpecError(f"--service {service}: no service has kept a book there")
    book = None if service is None else service.absolute()
    run_loop(serve_console(home, port, _announce, book))


def _announce(link: str) -> None:
    print_line(f"open in one browser: {link}")
