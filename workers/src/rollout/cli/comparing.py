"""``rollout runs compare``: several runs in one page and one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from rollout.cli.output import Format, OutputOption, cell, print_json, print_line, print_table

ByOption = Annotated[
    str | None,
    typer.Option(
        "--by",
        help="Rank by this: reward, loss, any metric of steps, EVALUATION or EVALUATION/SPLIT/METRIC.",
    ),
]
BESIDE = {"reward_last": "REWARD", "loss_last": "LOSS", "tokens_per_second": "TOKENS/S"}
SETTINGS_MAX = 12
"""Differing settings shown in text; the page and ``--output json`` have all."""


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Names, folders' names, or paths.", metavar="RUN RUN...")
    ],
    *,
    by: ByOption = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Where the page goes; default: compare.html beside the runs."),
    ] = None,
    output: OutputOption = Format.text,
) -> None:
    """Lay the curves of several runs over each other; write a page, and the JSON beside it."""
    import os

    from rollout.cli.runs import find
    from rollout.errors import SpecError
    from rollout.local.run_dir import runs_home
    from rollout.report.compare import compare_folders, write_comparison

    folders = list(dict.fromkeys(find(run) for run in runs))
    if len(folders) < 2:
        raise SpecError(f"nothing to compare: {len(folders)} run given; name at least two")
    where = page or runs_home(os.environ) / "compare.html"
    document = write_comparison(compare_folders(folders, by), where)
    if output is Format.json:
        print_json(document)
        return
    print_comparison(document)
    print_line(f"page: {where}")


def print_comparison(document: Mapping[str, Any]) -> None:
    """The ranked table, and the settings that differ."""
    beside = [key for key in BESIDE if key != f"{document['by']}_last"]
    headings = ["RANK", "RUN", "OUTCOME", str(document["by"]).upper(), "STEPS", "TIME"]
    print_table(
        [*headings, *(BESIDE[key] for key in beside)],
        [[*_row(run), *(run[key] for key in beside)] for run in document["runs"]],
    )
    if document["groups"]:
        print_line()
        print_table(
            ["RUNS", "MEAN", "SPREAD", "EXPERIMENT"],
            [
                [one["num_values"], one["mean"], one["spread"], ", ".join(one["runs"])]
                for one in document["groups"]
            ],
        )
    _print_settings(document)


def _row(run: Mapping[str, Any]) -> Sequence[Any]:
    value = cell(run["value"])
    if run["low"] is not None:
        value += f" [{run['low']:.3f}, {run['high']:.3f}]"
        value += " (not apart)" if run["told_apart"] is False else ""
    passed = str(timedelta(seconds=round(run["seconds"])))
    return [run["rank"], run["run"], run["outcome"], value, run["steps"], passed]


def _print_settings(document: Mapping[str, Any]) -> None:
    settings: Mapping[str, Sequence[Any]] = document["settings"]
    if not settings:
        return
    print_line()
    shown = list(settings.items())[:SETTINGS_MAX]
    names = [run["run"] for run in document["runs"]]
    print_table(
        ["SETTING", *names], [[path, *(_text(v) for v in values)] for path, values in shown]
    )
    if len(settings) > len(shown):
        print_line(f"and {len(settings) - len(shown)} more settings that differ: see the page")


def _text(value: Any) -> str:
    from rollout.report.settings import describe_value

    return describe_value(value)
