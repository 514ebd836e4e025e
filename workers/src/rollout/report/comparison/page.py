"""Several runs side by side: one self-contained page, and the JSON behind it.

Reads ledgers only. The runs need not be alike: what one of them never recorded is left out of its curves.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rollout.common.atomic_files import replace_text
from rollout.report.comparison.panels import Curves, build_curves, plan_comparison, style_of
from rollout.report.comparison.ranking import (
    HELD_OUT,
    Measure,
    Standing,
    choose_measure,
    rank,
    stand,
    told_apart,
)
from rollout.report.comparison.settings import (
    CONTENT,
    SEED,
    describe_value,
    differing_settings,
    group_runs,
    shorten_snapshot,
)
from rollout.report.data import ReportInput, by_evaluation, headlines, summarise
from rollout.report.gather import gather
from rollout.report.page import render_template
from rollout.report.plots import render_svg

TEMPLATE = Path(__file__).with_name("compare.html")
DRAWN_MAX = 18
"""Runs drawn, the best ones first; the tables hold all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run among several. ``label`` is unique; ``group`` and ``member`` choose colour and dash."""

    label: str
    data: ReportInput
    standing: Standing | None
    group: int
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs from best to worst by ``measure``; ``settings`` by path, one value a run in that order."""

    runs: tuple[Compared, ...]
    measure: Measure
    settings: Mapping[str, tuple[Any, ...]]


def compare_folders(folders: Sequence[Path], by: str | None = None) -> Comparison:
    """Compare the runs in these folders. Raises LedgerError, or SpecError for an unknown measure."""
    return compare_runs([(folder.name, gather(folder)) for folder in folders], by)


def compare_runs(named: Sequence[tuple[str, ReportInput]], by: str | None = None) -> Comparison:
    """Rank runs and find what differs between them. Raises SpecError for an unknown measure."""
    inputs = [data for _, data in named]
    measure = choose_measure(inputs, by)
    standings = [stand(data, measure) for data in inputs]
    differing = differing_settings(
        [{**shorten_snapshot(data.spec), CONTENT: data.contents} for data in inputs]
    )
    groups = group_runs(differing, len(inputs))
    labels, members = _unique([name for name, _ in named]), _count_up(groups)
    order = rank(standings, measure)
    return Comparison(
        runs=tuple(
            Compared(
                label=labels[at],
                data=inputs[at],
                standing=standings[at],
                group=groups[at],
                member=members[at],
            )
            for at in order
        ),
        measure=measure,
        settings={path: tuple(values[at] for at in order) for path, values in differing.items()},
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Names that occur more than once get a number."""
    seen: Counter[str] = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return labels


def _count_up(groups: Iterable[int]) -> list[int]:
    seen: Counter[int] = Counter()
    members = []
    for group in groups:
        members.append(seen[group])
        seen[group] += 1
    return members


def write_comparison(found: Comparison, page: Path) -> dict[str, Any]:
    """Write the page, and the JSON beside it under the same name; returns what the JSON holds."""
    document = describe_comparison(found)
    page.parent.mkdir(parents=True, exist_ok=True)
    replace_text(page.with_suffix(".json"), json.dumps(document, indent=1, default=str))
    replace_text(page, render_comparison(found))
    return document


def describe_comparison(found: Comparison) -> dict[str, Any]:
    """The comparison as plain data: ranks, differing settings, repeated experiments and curves."""
    return {
        "by": found.measure.name,
        "lower_is_better": found.measure.lower_is_better,
        "runs": [_describe_run(found, place) for place in range(len(found.runs))],
        "settings": {path: list(values) for path, values in found.settings.items()},
        "groups": describe_groups(found),
        "curves": {run.label: _plain(build_curves(run.data)) for run in found.runs},
    }


def _plain(curves: Curves) -> dict[str, Any]:
    return {
        "step": list(curves.steps),
        "seconds": list(curves.seconds),
        "metrics": {name: list(values) for name, values in curves.metrics.items()},
        "evaluations": [dict(row) for row in curves.evaluations],
    }


def _describe_run(found: Comparison, place: int) -> dict[str, Any]:
    run, best = found.runs[place], found.runs[0]
    summary = summarise(run.data)
    standing = run.standing
    return {
        "rank": None if standing is None else place + 1,
        "run": run.label,
        **{key: summary[key] for key in ("outcome", "algorithm", "model", "steps", "grade")},
        "seconds": build_curves(run.data).seconds_total,
        "value": None if standing is None else standing.value,
        "low": None if standing is None else standing.low,
        "high": None if standing is None else standing.high,
        "told_apart": None if place == 0 else told_apart(best.standing, standing),
        **{key: summary[key] for key in ("reward_last", "loss_last", "tokens_per_second")},
        "evaluations": [
            {**dict(rows[-1])} for rows in by_evaluation(headlines(run.data.evaluations)).values()
        ],
        "settings": {path: values[place] for path, values in found.settings.items()},
        "group": run.group,
        "warnings": summary["warnings"],
    }


def describe_groups(found: Comparison) -> list[dict[str, Any]]:
    """Experiments that were repeated with several seeds: mean and spread over them, best first.

    Empty when no experiment was repeated. ``spread`` is the standard deviation over seeds, None of one.
    """
    members: dict[int, list[Compared]] = {}
    for run in found.runs:
        members.setdefault(run.group, []).append(run)
    if len(members) == len(found.runs):
        return []
    described = [_describe_group(found, group, runs) for group, runs in members.items()]
    means = [
        None if one["mean"] is None else Standing(value=float(one["mean"])) for one in described
    ]
    return [described[at] for at in rank(means, found.measure)]


def _describe_group(found: Comparison, group: int, runs: Sequence[Compared]) -> dict[str, Any]:
    values = [run.standing.value for run in runs if run.standing is not None]
    place = next(at for at, run in enumerate(found.runs) if run.group == group)
    settings = {
        path: given[place]
        for path, given in found.settings.items()
        if path != SEED and not path.startswith(CONTENT)
    }
    return {
        "group": group,
        "settings": settings,
        "runs": [run.label for run in runs],
        "num_values": len(values),
        "mean": fmean(values) if values else None,
        "spread": stdev(values) if len(values) > 1 else None,
        "lowest": min(values, default=None),
        "highest": max(values, default=None),
    }


def render_comparison(found: Comparison) -> str:
    """The page as HTML text."""
    drawn = found.runs[:DRAWN_MAX]
    described = [_describe_run(found, place) for place in range(len(found.runs))]
    styles = [style_of(run.group, run.member) for run in found.runs]
    axes = {
        name: [(plot, render_svg(plot)) for plot in plan_comparison(_drawable(drawn), x=name)]
        for name in ("step", "time")
    }
    return render_template(
        TEMPLATE,
        found=found,
        runs=list(zip(described, styles, strict=True)),
        num_drawn=len(drawn),
        axes=axes,
        settings=[
            (path, [describe_value(value) for value in values])
            for path, values in found.settings.items()
        ],
        groups=describe_groups(found),
        describe=describe_value,
        is_share=bool(found.measure.split),
        takes_last=bool(found.measure.split) or found.measure.metric.startswith(HELD_OUT),
        on_report=found.measure.split == "report",
    )


def _drawable(runs: Sequence[Compared]) -> list[tuple[str, Curves, tuple[str, str]]]:
    return [(run.label, build_curves(run.data), style_of(run.group, run.member)) for run in runs]
