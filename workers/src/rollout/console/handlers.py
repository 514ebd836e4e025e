"""One handler a page: parse the address, read in a thread, render. Nothing here changes a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from rollout.console import live, runs, samples
from rollout.console.charts import draw
from rollout.console.render import render
from rollout.console.tables import plot_table
from rollout.errors import SpecError
from rollout.report.data import DISPOSITIONS, summarise
from rollout.report.gather import open_ledger
from rollout.report.panels import plan_plots
from rollout.report.plots import Plot

T = TypeVar("T")
HOME: web.AppKey[Path] = web.AppKey("home", Path)
READERS: web.AppKey[asyncio.Semaphore] = web.AppKey("readers", asyncio.Semaphore)
READERS_MAX = 4
PLOTS_FIRST = 6
"""On the page of a run; the others have one of their own."""
WANTED_MAX = 200

routes = web.RouteTableDef()


async def reading(request: web.Request, read: Callable[[], T]) -> T:
    """What ``read`` gives, made in a thread; few read at a time."""
    async with request.app[READERS]:
        return await asyncio.to_thread(read)


def folder_of(request: web.Request) -> Path:
    """The folder of the run that the address names. Raises SpecError."""
    return runs.find_folder(request.app[HOME], request.match_info["run"])


@routes.get("/")
async def list_runs(request: web.Request) -> web.Response:
    """The runs, a page at a time."""
    wanted = request.query.get("name", "")[:WANTED_MAX]
    page = samples.parse_number("page", request.query.get("page", ""), most=10**6) or 1
    by_name = request.query.get("sort") == "name"
    home = request.app[HOME]

    def read() -> str:
        found = runs.list_runs(home, wanted=wanted, page=page, by_name=by_name)
        return render("runs.html", home=home, listing=found, wanted=wanted, by_name=by_name)

    return _html(await reading(request, read))


@routes.get("/runs/{run}")
async def show_run(request: web.Request) -> web.Response:
    """How one run stands."""
    folder = folder_of(request)

    def read() -> str:
        found = runs.read_overview(folder)
        plots = plan_plots(found.data)
        return render(
            "run.html",
            run=found,
            summary=summarise(found.data),
            plots=_drawn(plots[:PLOTS_FIRST]),
            more=max(0, len(plots) - PLOTS_FIRST),
            phases=phase_rows(found),
            meanings=DISPOSITIONS,
        )

    return _html(await reading(request, read))


@routes.get("/runs/{run}/curves")
async def show_curves(request: web.Request) -> web.Response:
    """Every curve of a run."""
    folder = folder_of(request)

    def read() -> str:
        found = runs.read_overview(folder)
        return render("curves.html", run=found, plots=_drawn(plan_plots(found.data)))

    return _html(await reading(request, read))


@routes.get("/runs/{run}/samples")
async def show_samples(request: web.Request) -> web.Response:
    """A page of what a run was trained on."""
    folder, query = folder_of(request), samples.parse_query(request.query)

    def read() -> str:
        return render("samples.html", run=folder.name, found=samples.read_page(folder, query))

    return _html(await reading(request, read))


@routes.get("/runs/{run}/sample")
async def show_sample(request: web.Request) -> web.Response:
    """One sample: what was asked, answered and given for it, and where it came from."""
    folder, task = folder_of(request), request.query.get("task", "")
    number = samples.parse_number("sample", request.query.get("sample", ""), most=1 << 31)
    if not task or number is None:
        raise SpecError("an address of a sample has task=... and sample=...: choose one of a list")

    def read() -> str:
        with open_ledger(folder) as ledger:
            trace = ledger.sample(task, number)
        return render("sample.html", run=folder.name, trace=trace)

    return _html(await reading(request, read))


@routes.get("/runs/{run}/live")
async def follow(request: web.Request) -> web.StreamResponse:
    """A line whenever the run has moved (server-sent events)."""
    folder = folder_of(request)
    return await live.follow(request, lambda: reading(request, lambda: runs.read_mark(folder)))


def phase_rows(found: runs.Overview) -> list[tuple[str, float, float]]:
    """Of all steps: each phase, its seconds, and its share of them."""
    totals: dict[str, float] = {}
    for step in found.data.steps:
        for name, seconds in step["phase_seconds"].items():
            totals[name] = totals.get(name, 0.0) + seconds
    whole = sum(totals.values())
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return [(name, seconds, seconds / whole) for name, seconds in ranked if whole]


def _drawn(plots: list[Plot]) -> list[tuple[Plot, str, list[list[str]]]]:
    return [(plot, draw(plot), plot_table(plot)) for plot in plots]


def _html(text: str) -> web.Response:
    response = web.Response(text=text, content_type="text/html")
    response.enable_compression()
    return response
