"""How commands print: plain text for people, one JSON document with ``--output json``.

Much of what is printed was written by a model, a user or a server: it is shown as text, whatever it looks like.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from rollout.report.finite import finite
from rollout_api.visible import visible


class OutputFormat(StrEnum):
    """What a command prints on standard output."""

    text = "text"
    json = "json"


OutputOption = Annotated[
    OutputFormat, typer.Option("--output", help="text, or json for programs.", show_default=True)
]
FileOption = Annotated[
    str, typer.Option("--file", "-f", help="A manifest (YAML or TOML); - reads standard input.")
]


def print_json(value: Any) -> None:
    """One JSON document on standard output; numbers that JSON does not have become null."""
    sys.stdout.write(json.dumps(finite(value), indent=2, default=str, allow_nan=False) + "\n")


def print_line(text: str = "") -> None:
    """One line on standard output."""
    sys.stdout.write(visible(text) + "\n")


def print_note(text: str) -> None:
    """One line on standard error: for people, never for programs."""
    sys.stderr.write(visible(text) + "\n")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with a heading row; numbers to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    body = [tuple(row) for row in rows]
    for index, heading in enumerate(headings):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(
            Text(visible(heading)),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=index == 0,  # names stay whole; what is said of them folds
        )
    for row in body:
        table.add_row(*(Text(visible(cell(value))) for value in row))
    Console().print(table)


def cell(value: Any) -> str:
    """A value as a short cell: floats with four significant digits, nothing as a dash."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
