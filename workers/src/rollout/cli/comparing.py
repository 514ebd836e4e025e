"""``rollout runs compare``: several runs in one page and one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from rollout.cli.cluster.options import ClusterFlag, ContextOption, NamespaceOption, names_cluster
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line, print_table

ByOption = Annotated[
    str | None,
    typer.Option(
        "--by",
        help="Rank by this: reward, loss, any metric of steps, EVALUATION or EVALUATION/SPLIT/METRIC.",
    ),
]
R = TypeVar("R")
COLUMNS_MAX = 4
"""Differing settings that still stand in the ranked table."""
SETTINGS_MAX, RUNS_MAX = 12, 4
"""Differing settings, and runs, that a table of settings shows in text; the page has all."""


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
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Lay the curves of several runs over each other; write a page, and the JSON beside it. Of a cluster compare.html here."""
    import os

    from rollout.report.comparison.page import compare_folders, compare_runs, write_comparison
    from rollout.runs.run_dir import runs_home

    if names_cluster(cluster=cluster, context=context, namespace=namespace):
        from rollout.cli.cluster.remote import read_reports

        named = require_several(list(dict.fromkeys(runs)))
        found = compare_runs(read_reports(named, context, namespace), by)
        where = page or Path("compare.html")
    else:
        from rollout.cli.runs import find

        folders = require_several(list(dict.fromkeys(find(run) for run in runs)))
        found = compare_folders(folders, by)
        where = page or runs_home(os.environ) / "compare.html"
    document = write_comparison(found, where)
    if output is OutputFormat.json:
        print_json(document)
        return
    print_comparison(document)
    print_line(f"page: {where}")


def require_several(runs: list[R]) -> list[R]:
    """The runs, of which there are at least two. Raises SpecError."""
    from rollout.errors import SpecError

    if len(runs) < 2:
        raise SpecError(f"nothing to compare: {len(runs)} run given; name at least two")
    return runs


def print_comparison(document: Mapping[str, Any]) -> None:
    """The ranked table; settings that differ stand in it when they are few, else below.

    APART: whether the intervals of this run and of the first do not overlap.
    """
    runs: Sequence[Mapping[str, Any]] = document["runs"]
    chosen = [path for path in document["settings"] if not path.startswith("content.")]
    few = chosen if len(chosen) <= COLUMNS_MAX else []
    columns = {"RANK": "rank", "RUN": "run", "OUTCOME": "outcome", "VALUE": "value"}
    if all(run["outcome"] == "Succeeded" for run in runs):
        del columns["OUTCOME"]
    print_line(f"ranked by {document['by']}")
    print_table(
        [*columns, "95 %", "APART", "STEPS", "TIME", "TOKENS/S", *map(_leaf, few)],
        [
            [
                *(run[key] for key in columns.values()),
                _interval(run),
                {True: "yes", False: "no"}.get(run["told_apart"]),
                run["steps"],
                str(timedelta(seconds=round(run["seconds"]))),
                run["tokens_per_second"],
                *(_text(run["settings"][path]) for path in few),
            ]
            for run in runs
        ],
    )
    _print_groups(document)
    if not few:
        _print_settings(document)


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _interval(run: Mapping[str, Any]) -> str | None:
    return None if run["low"] is None else f"{run['low']:.3f}..{run['high']:.3f}"


def _print_groups(document: Mapping[str, Any]) -> None:
    if document["groups"]:
        print_line()
        print_table(
            ["RUNS", "MEAN", "SPREAD", "EXPERIMENT"],
            [
                [one["num_values"], one["mean"], one["spread"], _describe(one)]
                for one in document["groups"]
            ],
        )


def _describe(group: Mapping[str, Any]) -> str:
    settings = group["settings"]
    if not 0 < len(settings) <= COLUMNS_MAX:
        return ", ".join(group["runs"])
    return ", ".join(f"{_leaf(path)}={_text(value)}" for path, value in settings.items())


def _print_settings(document: Mapping[str, Any]) -> None:
    settings: Mapping[str, Sequence[Any]] = document["settings"]
    if not settings:
        return
    if len(document["runs"]) > RUNS_MAX:
        print_line(f"{len(settings)} settings differ: see the page")
        return
    print_line()
    shown = list(settings.items())[:SETTINGS_MAX]
    names = [run["run"] for run in document["runs"]]
    print_table(["SETTING", *names], [[path, *map(_text, values)] for path, values in shown])
    if len(settings) > len(shown):
        print_line(f"and {len(settings) - len(shown)} more settings that differ: see the page")


def _text(value: Any) -> str:
    from rollout.report.comparison.settings import describe_value

    return describe_value(value)
