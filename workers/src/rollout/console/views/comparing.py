"""Several runs over each other: ranks, curves and the settings that differ, as ``rollout runs compare`` has them."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from rollout.console.asking import HOME, answer, choice_of, find_folder, word_of
from rollout.console.render import render
from rollout.console.views.overview import drawn
from rollout.errors import SpecError
from rollout.report.comparison.page import compare_runs, describe_comparison
from rollout.report.comparison.panels import PALETTE, build_curves, plan_comparison, style_of
from rollout.report.comparison.settings import describe_value
from rollout.report.gather import gather

RUNS_MAX = 12

routes = web.RouteTableDef()


@routes.get("/compare")
async def show_comparison(request: web.Request) -> web.Response:
    """Two to RUNS_MAX runs: ``?run=a&run=b``."""
    home, names = request.app[HOME], list(dict.fromkeys(request.query.getall("run", [])))
    if not 2 <= len(names) <= RUNS_MAX:
        raise SpecError(
            f"{len(names)} runs chosen: tick 2 to {RUNS_MAX} in the list of runs, then press Compare"
        )
    folders = [find_folder(home, name) for name in names]
    axis, by = choice_of(request, "x", ("step", "time")), word_of(request, "by") or None
    return await answer(request, lambda: _render(folders, axis, by))


def _render(folders: list[Path], axis: str, by: str | None) -> str:
    named = [(folder.name, gather(folder, whole=False)) for folder in folders]
    found = compare_runs(named, by)
    styles = [style_of(run.group, run.member) for run in found.runs]
    lines = [
        (run.label, build_curves(run.data), style)
        for run, style in zip(found.runs, styles, strict=True)
    ]
    document = describe_comparison(found)
    return render(
        "compare.html",
        by=document["by"],
        axis=axis,
        runs=[
            (run, PALETTE.index(colour))
            for run, (colour, _) in zip(document["runs"], styles, strict=True)
        ],
        names=[folder.name for folder in folders],
        plots=drawn(plan_comparison(lines, x="time" if axis == "time" else "step")),
        settings=[
            (path, [describe_value(value) for value in values])
            for path, values in found.settings.items()
        ],
    )
