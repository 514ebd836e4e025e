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

GAP = 2
"""Spaces between the columns of a list."""


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


def print_list(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """One line a row: the first column is what people copy and always whole, others are cut to the terminal's width.

    Where the output is no terminal, nothing is cut.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.text import Text

    console = Console()
    body = [
        [" ".join(visible(cell(value)).splitlines()) for value in row] for row in (headings, *rows)
    ]
    natural = [max(map(cell_len, column)) for column in zip(*body, strict=True)]
    room = console.width if console.is_terminal else sum(natural) + GAP * len(natural)
    widths = fit_columns(natural, [cell_len(one) for one in body[0]], room)
    for number, row in enumerate(body):
        cells = [
            one if cell_len(one) <= width else f"{set_cell_size(one, width - 1)}…"
            for one, width in zip(row, widths, strict=True)
        ]
        padded = (set_cell_size(one, width) for one, width in zip(cells, widths, strict=True))
        line = (" " * GAP).join(padded).rstrip()
        console.print(Text(line, style="" if number else "bold"), soft_wrap=True)


def fit_columns(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths of columns in cells: the first as it is, the widest others smaller until all fit, none below its least."""
    widths = list(natural)
    while sum(widths) + GAP * (len(widths) - 1) > room:
        spare = [max(0, one - low) for one, low in zip(widths[1:], least[1:], strict=True)]
        if not any(spare):
            break
        widest = max(range(1, len(widths)), key=lambda i: widths[i] if spare[i - 1] else -1)
        over = sum(widths) + GAP * (len(widths) - 1) - room
        below = max((one for i, one in enumerate(widths[1:], 1) if i != widest), default=0)
        step = max(1, min(over, widths[widest] - max(below, least[widest])))
        widths[widest] -= step
    return widths


def cell(value: Any) -> str:
    """A value as a short cell: floats with four significant digits, nothing as a dash."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
