"""``rollout runs export``: a run's tables as files for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.output import print_table
from rollout.cli.runs import RunArgument, find

if TYPE_CHECKING:
    from rollout.report.tables import What


class FileFormat(StrEnum):
    """How tables are written."""

    parquet = "parquet"
    jsonl = "jsonl"


class ExportedTable(StrEnum):
    """What is written."""

    samples = "samples"
    answers = "answers"
    metrics = "metrics"
    evaluations = "evaluations"


def export(
    run: RunArgument,
    *,
    output: Annotated[
        Path, typer.Option("--output", help="The folder for the files; made where it is missing.")
    ],
    form: Annotated[
        FileFormat, typer.Option("--format", help="Kind of file.")
    ] = FileFormat.parquet,
    what: Annotated[
        list[ExportedTable] | None,
        typer.Option(
            "--what",
            help="samples: what was trained on; answers: those of evaluations. Repeatable; default: samples.",
        ),
    ] = None,
) -> None:
    """Write samples, metrics or evaluations to Parquet or JSON lines; whole files or none."""
    from rollout.report.export import export_run

    wanted: list[What] = [one.value for one in dict.fromkeys(what or [ExportedTable.samples])]
    written = export_run(find(run), output, wanted, form.value)
    print_table(
        ["TABLE", "ROWS", "FILE"],
        [[name, rows, str(path)] for name, (path, rows) in written.items()],
    )
