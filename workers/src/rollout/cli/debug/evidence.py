"""``rollout debug evidence``: what is kept of processes that ended badly."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_table
from rollout.cli.runs import RunArgument, find


def evidence(
    run: RunArgument,
    name: Annotated[
        str | None, typer.Argument(help="Show the text of this one.", metavar="[NAME]")
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """List what is kept of processes that ended badly or did not move, or show one of them."""
    from rollout.report.evidence import list_evidence, read_evidence

    folder = find(run)
    if name is not None:
        text = read_evidence(folder, name)
        if output is OutputFormat.json:
            print_json({"name": name, "text": text})
        else:
            for line in text.splitlines():
                print_line(line)
        return
    pieces = list_evidence(folder)
    if output is OutputFormat.json:
        print_json([asdict(piece) for piece in pieces])
    elif not pieces:
        print_line("nothing is kept: every process ended in peace, or was not seen to do otherwise")
    else:
        rows = [[piece.name, piece.moment, _when(piece.at), piece.size_bytes] for piece in pieces]
        print_table(["NAME", "MOMENT", "AT", "BYTES"], rows)


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
