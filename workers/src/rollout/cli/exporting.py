"""``rollout runs export``: a run's tables as files for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.book.finding import BaseOption, ServiceOption, find_either, load_decoder
from rollout.cli.output import print_table
from rollout.cli.runs import RunOrModelArgument

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
    run: RunOrModelArgument,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "--to", help="The folder for the files; made where it is missing."
        ),
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
    service: ServiceOption = None,
    base: BaseOption = None,
) -> None:
    """Write samples, metrics or evaluations to Parquet or JSON lines; whole files or none. Of a service's model samples and metrics."""
    from rollout.report.export import export_run

    wanted: list[What] = [one.value for one in dict.fromkeys(what or [ExportedTable.samples])]
    found = find_either(run, service)
    if isinstance(found, Path):
        written = export_run(found, output, wanted, form.value)
    else:
        from rollout.report.service_tables import export_model

        with found:
            decode = load_decoder(found, base) if "samples" in wanted else None
            written = export_model(found, output, wanted, form.value, decode)
    print_table(
        ["TABLE", "ROWS", "FILE"],
        [[name, rows, str(path)] for name, (path, rows) in written.items()],
    )
