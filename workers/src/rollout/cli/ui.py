"""``rollout ui``: the runs of this machine in a browser."""

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
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="Of 127.0.0.1, where it listens; 0: a free one."
        ),
    ] = 8675,
) -> None:
    """Look at runs in a browser on this machine, live or afterwards, until Ctrl-C; the link that is printed opens it."""
    import os

    from rollout.common.stacks import run_loop
    from rollout.console.serve import serve_console
    from rollout.errors import SpecError
    from rollout.runs.run_dir import runs_home

    home = (runs or runs_home(os.environ)).absolute()
    if runs is not None and not home.is_dir():
        raise SpecError(f"--runs {runs}: there is no such folder; give the one that holds the runs")
    run_loop(serve_console(home, port, _announce))


def _announce(link: str) -> None:
    print_line(f"open in one browser: {link}")
