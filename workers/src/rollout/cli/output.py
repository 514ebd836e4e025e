"""How commands print: plain text for people, one JSON document with ``--output json``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """What a command prints on standard output."""

    text = "text"
    json = "json"


OutputOption = Annotated[
    Format, typer.Option("--output", help="text, or json for programs.", show_default=True)
]
FileOption = Annotated[
    str, typer.Option("--file", "-f", help="A manifest (YAML or TOML); - reads standard input.")
]


def print_json(value: Any) -> None:
    """One JSON document on standard output; numbers that JSON does not have become null."""
    sys.stdout.write(json.dumps(_finite(value), indent=2, default=str, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_line(text: str = "") -> None:
    """One line on standard output."""
    sys.stdout.write(text + "\n")


def print_note(text: str) -> None:
    """One line on standard error: for people, never for programs."""
    sys.stderr.write(text + "\n")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with a heading row; numbers to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    body = [tuple(row) for row in rows]
    for index, heading in enumerate(headings):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(
            heading,
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=index == 0,  # names stay whole; what is said of them folds
        )
    for row in body:
        table.add_row(*(cell(value) for value in row))
    Console().print(table)


def cell(value: Any) -> str:
    """A value as a short cell: floats with four significant digits, nothing as a dash."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
