"""``rollout cost``: what runs have cost, from when their processes lived and the user's table of prices."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.cluster.options import (
    ClusterFlag,
    ContextOption,
    NamespaceOption,
    names_cluster,
    open_cluster,
)
from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_list,
    print_note,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout.cluster.client import Cluster
    from rollout.costs.prices import PriceTable
    from rollout.costs.usage import RunUsage

NO_TABLE = (
    "no table of prices: name one with --prices FILE or ROLLOUT_PRICES; hours are told without"
)


class By(StrEnum):
    """What is summed."""

    run = "run"
    team = "team"
    month = "month"


def cost(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Names, folders or paths of runs. Unset: all.", metavar="[RUN]..."),
    ] = None,
    *,
    by: Annotated[
        By, typer.Option("--by", help="A line for each of these; months are of UTC.")
    ] = By.run,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", help="The table. Unset: the file that ROLLOUT_PRICES names."),
    ] = None,
    all_namespaces: Annotated[
        bool,
        typer.Option("--all-namespaces", "-A", help="Of a cluster: all that may be read."),
    ] = False,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """What runs of this machine, or of a cluster, have cost. What has no price is named, with its hours."""
    table = _find_table(prices)
    if all_namespaces or names_cluster(cluster=cluster, context=context, namespace=namespace):
        opened = open_cluster(context, namespace)
        usages, chosen = _find_in_cluster(opened, runs or [], everywhere=all_namespaces)
    else:
        usages, chosen = _find_usages(runs or [])
    _print(usages, chosen, by, table, output)


def _print(
    usages: Sequence[RunUsage],
    chosen: frozenset[str],
    by: By,
    table: PriceTable | None,
    output: OutputFormat,
) -> None:
    from rollout.costs.billing import bill, sum_up, total_of
    from rollout.costs.telling import document, money, unpriced_text

    if output is OutputFormat.json:
        print_json(document(usages, chosen, by.value, table))
        return
    if table is None:
        print_note(NO_TABLE)
    currency = "" if table is None else table.currency
    charges = [one for one in bill(usages, table) if one.run in chosen]
    sums = sum_up(charges, by.value)
    if not sums:
        print_line("no run has used anything yet")
    else:
        lines = [*sums, *([total_of("total", charges)] if len(sums) > 1 else [])]
        cells = [
            (one.key, money(one.cost, currency), unpriced_text(one.unpriced) or None)
            for one in lines
        ]
        print_list((by.value.upper(), "COST", "WITHOUT A PRICE"), cells)
    _print_details(usages, chosen, currency, table)


def _print_details(
    usages: Sequence[RunUsage], chosen: frozenset[str], currency: str, table: PriceTable | None
) -> None:
    """Of one run what its samples cost; of several which could not be read."""
    from rollout.costs.telling import cost_of, describe

    for one in usages:
        if one.run in chosen and one.stays is None:
            print_line(f"not counted: {one.run}: {one.why}")
    if len(chosen) == 1 and table is not None:
        [run] = chosen
        print_line(describe(cost_of(usages, run, table), currency))


def _find_table(path: Path | None) -> PriceTable | None:
    from rollout.costs.prices import read_table
    from rollout.costs.telling import PRICES_VARIABLE

    named = path or os.environ.get(PRICES_VARIABLE)
    return read_table(Path(named)) if named else None


def _find_in_cluster(
    cluster: Cluster, runs: Sequence[str], *, everywhere: bool
) -> tuple[tuple[RunUsage, ...], frozenset[str]]:
    """What the statuses of runs say; pods that are gone are in it. Raises KubeError, and ObjectNotFound for a run that is named."""
    from rollout.cluster.kinds import RUN, Reference
    from rollout.costs.statuses import usage_of
    from rollout.errors import SpecError

    if runs and everywhere:
        raise SpecError("--all-namespaces: names of runs are of one namespace; use --namespace")
    found = (
        [cluster.get(Reference(kind=RUN, name=one)) for one in runs]
        if runs
        else cluster.objects(RUN, everywhere=everywhere)
    )
    usages = tuple(usage_of(one, qualified=everywhere) for one in found)
    return usages, frozenset(one.run for one in usages)


def _find_usages(runs: Sequence[str]) -> tuple[tuple[RunUsage, ...], frozenset[str]]:
    """The runs that are asked for and those beside them, who may have shared their machine."""
    from rollout.costs.reading import find_folders, read_usages
    from rollout.runs.run_dir import find_run, runs_home

    asked = [find_run(one) for one in runs]
    homes = {one.parent for one in asked} or {runs_home(os.environ)}
    folders = sorted({folder for home in homes for folder in find_folders(home)} | set(asked))
    return read_usages(folders), frozenset(one.name for one in asked or folders)
