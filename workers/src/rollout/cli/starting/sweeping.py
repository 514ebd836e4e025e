"""``rollout sweep``: one manifest over a grid of settings and seeds, or a RolloutSweep, ending in one page."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.comparing import ByOption, print_comparison
from rollout.cli.output import (
    FileOption,
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
    print_table,
)
from rollout.cli.starting.running import DryRunOption, SetOption

if TYPE_CHECKING:
    from rollout.runs.manifest import Document
    from rollout.supervisor.sweeps.book import Entry, Sweep
    from rollout.supervisor.sweeps.halving import Halving
    from rollout.supervisor.sweeps.manifest import PlannedSweep
    from rollout.supervisor.sweeps.points import Axis, Point

PARALLEL_MAX = 64
SEEDS_MAX = 1000
FACTOR = 3
FORKS_MAX = 64


class HalveBy(StrEnum):
    """What points are compared by before their end."""

    reward = "RewardMean"
    evaluation = "BestEvaluation"


HalveAtOption = Annotated[
    int | None,
    typer.Option(
        "--halve-at",
        min=1,
        max=10_000_000,
        help="Compare points at this step, and at each FACTOR times as far; all but the best are stopped. Unset: every point goes to its end.",
    ),
]
HalveFactorOption = Annotated[
    int | None,
    typer.Option("--halve-factor", min=2, max=10, help="Of so many one goes on; default: 3."),
]
HalveByOption = Annotated[
    HalveBy | None,
    typer.Option(
        "--halve-by",
        help="RewardMean (of the step; the default), or BestEvaluation (of the evaluation that selects).",
    ),
]
OverOption = Annotated[
    list[str] | None,
    typer.Option(
        "--over", help="A field and its values: train.maxStaleness=0,1 (repeatable: a grid)."
    ),
]
SeedsOption = Annotated[
    int, typer.Option("--seeds", min=1, max=SEEDS_MAX, help="Repeat each point so often.")
]
ParallelOption = Annotated[
    int | None,
    typer.Option(
        "--parallel",
        min=1,
        max=PARALLEL_MAX,
        help="Points at a time; they share this machine. Default: 1, or parallelism of a RolloutSweep.",
    ),
]
ForksOption = Annotated[
    int | None,
    typer.Option(
        "--forks",
        min=1,
        max=FORKS_MAX,
        help="So many losers' places are taken by runs that begin with a snapshot of the best point there (with --halve-at).",
    ),
]


def sweep(
    file: FileOption,
    *,
    over: OverOption = None,
    seeds: SeedsOption = 1,
    parallel: ParallelOption = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="The sweep's folder; default: <manifest's name>-sweep, or the name of a RolloutSweep.",
        ),
    ] = None,
    halve_at: HalveAtOption = None,
    halve_factor: HalveFactorOption = None,
    halve_by: HalveByOption = None,
    forks: ForksOption = None,
    by: ByOption = None,
    set_: SetOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Run a manifest over a grid of settings, or a RolloutSweep; skip what is finished, stop losers early; end with a ranked page."""
    import os

    from rollout.common.stacks import show_on_signal
    from rollout.runs.run_dir import runs_home
    from rollout.supervisor.sweeps.book import Sweep, exit_code_of
    from rollout.supervisor.sweeps.running import run_points

    asked = SweepOptions(
        over=tuple(over or ()),
        seeds=seeds,
        parallel=parallel,
        halve_at=halve_at,
        halve_factor=halve_factor,
        halve_by=halve_by,
        forks=forks,
    )
    planned = _plan(_document(file, set_ or []), asked)
    home = runs_home(os.environ)
    wanted = Sweep(
        folder=home / (name or planned.name),
        home=home,
        parallel=planned.parallel,
        shows=planned.parallel == 1 and output is OutputFormat.text and sys.stderr.isatty(),
        tell=print_note,
        halving=planned.halving,
        grid=planned.grid,
        forks_max=planned.forks_max,
    )
    _require_forks(wanted, planned.points)
    if dry_run:
        _print_points(planned.points, output)
        return
    show_on_signal()
    entries = run_points(wanted, planned.points)
    _tell(entries, wanted.folder, by or planned.ranked_by, output)
    raise typer.Exit(exit_code_of(entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What the options say of a sweep; a RolloutSweep says all of it itself, but ``parallel`` may be another here."""

    over: tuple[str, ...]
    seeds: int
    parallel: int | None
    halve_at: int | None
    halve_factor: int | None
    halve_by: HalveBy | None
    forks: int | None

    def named(self) -> Iterator[str]:
        """The options that only a manifest of a run takes, where they are given."""
        given = {
            "--over": self.over,
            "--seeds": self.seeds > 1,
            "--halve-at": self.halve_at,
            "--halve-factor": self.halve_factor,
            "--halve-by": self.halve_by,
            "--forks": self.forks,
        }
        yield from (name for name, value in given.items() if value)


def _plan(document: Document, asked: SweepOptions) -> PlannedSweep:
    """What is to be run. Raises SpecError."""
    from rollout.errors import SpecError
    from rollout.supervisor.sweeps.manifest import PlannedSweep, is_sweep, plan_sweep
    from rollout.supervisor.sweeps.points import Grid, place_document, plan_points

    if is_sweep(document):
        if (option := next(asked.named(), None)) is not None:
            raise SpecError(f"{option}: a RolloutSweep says it itself; change the manifest")
        planned = plan_sweep(document)
        return planned if asked.parallel is None else replace(planned, parallel=asked.parallel)
    axes = _axes(document, asked.over, asked.seeds)
    points = plan_points(document, axes)
    halving = _halving(points, asked.halve_at, asked.halve_factor, asked.halve_by)
    if asked.forks is not None and halving is None:
        raise SpecError(
            f"--forks {asked.forks}: nothing loses, and nothing is forked, without --halve-at STEP"
        )
    return PlannedSweep(
        name=_sweep_name(document),
        points=points,
        grid=Grid(base=place_document(document), axes=tuple(axes)),
        parallel=asked.parallel or 1,
        halving=halving,
        forks_max=asked.forks or 0,
        ranked_by=None,
    )


def _document(file: str, overrides: Sequence[str]) -> Document:
    from rollout.errors import SpecError
    from rollout.runs.manifest import load_documents
    from rollout.runs.validation import apply_overrides

    documents = load_documents(file)
    if len(documents) != 1:
        raise SpecError(
            f"{file}: {len(documents)} documents; a sweep takes one run. Run the earlier ones first, "
            "and let this one start from them by model.fromRun"
        )
    return apply_overrides(documents[0], overrides)


def _axes(document: Document, over: Sequence[str], seeds: int) -> Sequence[Axis]:
    from rollout.errors import SpecError
    from rollout.supervisor.sweeps.points import parse_axis, seed_axis

    axes = [parse_axis(item) for item in over]
    if seeds > 1:
        axes.append(seed_axis(document, seeds))
    if not axes:
        raise SpecError("nothing to sweep over; give --over path=value,value or --seeds N")
    return axes


def _halving(
    points: Sequence[Point], first_step: int | None, factor: int | None, by: HalveBy | None
) -> Halving | None:
    """How points lose. Raises SpecError, also for points that report nothing to be compared by."""
    from rollout.errors import SpecError
    from rollout.supervisor.sweeps.halving import Halving, require_objective
    from rollout_api.sweeps.halving import HalvingRule

    if first_step is None:
        given = {"--halve-factor": factor, "--halve-by": None if by is None else by.value}
        for name, value in given.items():
            if value is not None:
                raise SpecError(f"{name} {value}: nothing is halved without --halve-at STEP")
        return None
    among = FACTOR if factor is None else factor
    metric = HalveBy.reward if by is None else by
    require_objective(points, metric.value)
    rule = HalvingRule(first_step=first_step, factor=among, min_runs=among)
    return Halving(rule=rule, metric=metric.value)


def _require_forks(sweep: Sweep, points: Sequence[Point]) -> None:
    """Raises SpecError for forks that could not be."""
    from rollout.supervisor.sweeps.forking import require_forkable

    if sweep.forks_max:
        require_forkable(sweep, points)


def _sweep_name(document: Document) -> str:
    metadata = document.data.get("metadata") or {}
    return f"{metadata.get('name') or 'run'}-sweep"


def _print_points(points: Sequence[Point], output: OutputFormat) -> None:
    rows = [{"name": point.name, "settings": dict(point.settings)} for point in points]
    if output is OutputFormat.json:
        print_json(rows)
        return
    paths = list(points[0].settings)
    print_table(["POINT", *paths], [[p.name, *(str(p.settings[x]) for x in paths)] for p in points])


def _tell(entries: Sequence[Entry], folder: Path, by: str | None, output: OutputFormat) -> None:
    from rollout.report.comparison.page import compare_folders, write_comparison

    runs = [entry.run.path for entry in entries if entry.run is not None]
    document = None
    if len(runs) > 1:
        document = write_comparison(compare_folders(runs, by), folder / "compare.html")
    if output is OutputFormat.json:
        print_json({"points": [entry.describe() for entry in entries], "comparison": document})
        return
    if document is not None:
        print_comparison(document)
    for entry in entries:
        begun = "" if entry.forked_from is None else f", a fork of {entry.forked_from.name}"
        if entry.state != "finished" or begun:
            print_note(f"{entry.point.name}: {entry.state}{begun}{_why(entry)}")
    if document is not None:
        print_line(f"page: {folder / 'compare.html'}")


def _why(entry: Entry) -> str:
    shown = entry.exit_code is not None and entry.state != "stopped"
    code = f" (exit code {entry.exit_code})" if shown else ""
    return f"{code}: {entry.message}" if entry.message else code
