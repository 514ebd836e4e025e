"""``rollout validate`` and ``rollout fmt``: schema and checks, nothing loaded, nothing run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.output import (
    FileOption,
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
)

if TYPE_CHECKING:
    from rollout.runs.validation import Located


def validate(file: FileOption, output: OutputOption = OutputFormat.text) -> None:
    """Check a manifest against the schema and the plan-time rules."""
    from rollout.runs.manifest import load_folder_or_file
    from rollout.runs.validation import validate_documents

    documents = load_folder_or_file(file)
    located = validate_documents(documents)
    errors = [item for item in located if item.problem.severity == "error"]
    if output is OutputFormat.json:
        print_json({"valid": not errors, "problems": [asdict(item) for item in located]})
    else:
        _print_located(located)
        if not errors:
            noun = "document is" if len(documents) == 1 else "documents are"
            print_line(f"{file}: {len(documents)} {noun} valid")
    raise typer.Exit(2 if errors else 0)


def _print_located(located: list[Located]) -> None:
    for item in located:
        problem = item.problem
        print_note(
            f"{item.source}:{item.line}: {problem.severity}: {problem.field}: {problem.message}"
        )
        print_note(f"    reason: {problem.reason}    fix: {problem.fix}")


def fmt(
    file: FileOption,
    *,
    write: Annotated[
        bool, typer.Option("--write", "-w", help="Rewrite the file in place.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 2 if the file would change.")
    ] = False,
) -> None:
    """Normalise a manifest: decimal strings quoted, two-space indents, comments kept."""
    from rollout.runs.formatting import format_manifest
    from rollout.runs.manifest import read_text

    name, before = read_text(file)
    after = format_manifest(name, before)
    if check:
        if before != after:
            print_note(f"{name}: not formatted; run: rollout fmt --write -f {name}")
        raise typer.Exit(2 if before != after else 0)
    if write and name != "<stdin>":
        Path(name).write_text(after, encoding="utf-8")
    else:
        typer.echo(after, nl=False)
