"""One run: where it stands, its curves, and a stream that says when it has moved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rollout.console import live
from rollout.console.asking import answer, folder_of, reading
from rollout.console.charts import draw
from rollout.console.render import render
from rollout.console.standing import RESUMABLE, is_live, judge_state, read_mark, read_max_steps
from rollout.console.tables import plot_table
from rollout.ledger.views import EventView
from rollout.report.data import DISPOSITIONS, ReportInput, summarise
from rollout.report.gather import gather, open_ledger
from rollout.report.panels import plan_plots
from rollout.report.plots import Plot

EVENTS_MAX = 100
PLOTS_FIRST = 6
"""On the page of a run; the others have one of their own."""

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One run. ``live``: its processes are there."""

    name: str
    state: str
    live: bool
    resumable: bool
    data: ReportInput
    events: tuple[EventView, ...]
    position: int
    max_steps: int | None


def read_overview(folder: Path) -> Overview:
    """What the page of a run shows. Raises LedgerError."""
    live = is_live(folder)
    data = gather(folder, whole=False)
    with open_ledger(folder) as ledger:
        run, events = ledger.run(), ledger.events(EVENTS_MAX)
    return Overview(
        name=folder.name,
        state=judge_state(run.outcome, live=live),
        live=live,
        resumable=judge_state(run.outcome, live=live) in RESUMABLE,
        data=data,
        events=events[::-1],
        position=run.position,
        max_steps=read_max_steps(data.spec),
    )


@routes.get("/runs/{run}")
async def show_run(request: web.Request) -> web.Response:
    """How one run stands."""
    folder = folder_of(request)

    def make() -> str:
        found = read_overview(folder)
        plots = plan_plots(found.data)
        return render(
            "run.html",
            run=found,
            summary=summarise(found.data),
            plots=drawn(plots[:PLOTS_FIRST]),
            more=max(0, len(plots) - PLOTS_FIRST),
            phases=phase_rows(found),
            meanings=DISPOSITIONS,
        )

    return await answer(request, make)


@routes.get("/runs/{run}/curves")
async def show_curves(request: web.Request) -> web.Response:
    """Every curve of a run."""
    folder = folder_of(request)

    def make() -> str:
        found = read_overview(folder)
        return render("curves.html", run=found, plots=drawn(plan_plots(found.data)))

    return await answer(request, make)


@routes.get("/runs/{run}/live")
async def follow(request: web.Request) -> web.StreamResponse:
    """A line whenever the run has moved (server-sent events)."""
    folder = folder_of(request)
    return await live.follow(request, lambda: reading(request, lambda: read_mark(folder)))


def phase_rows(found: Overview) -> list[tuple[str, float, float]]:
    """Of all steps: each phase, its seconds, and its share of them."""
    totals: dict[str, float] = {}
    for step in found.data.steps:
        for name, seconds in step["phase_seconds"].items():
            totals[name] = totals.get(name, 0.0) + seconds
    whole = sum(totals.values())
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return [(name, seconds, seconds / whole) for name, seconds in ranked if whole]


def drawn(plots: list[Plot]) -> list[tuple[Plot, str, list[list[str]]]]:
    """Each plot with its drawing and its table."""
    return [(plot, draw(plot), plot_table(plot)) for plot in plots]
