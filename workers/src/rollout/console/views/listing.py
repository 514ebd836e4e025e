"""The runs of a folder and the models of a training service: a page of the list. Reads only; one ledger is open at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web

from rollout.console.asking import CONFIG, HOME, answer, choice_of, page_of, word_of
from rollout.console.models.listing import ListedModels, list_models, model_lines
from rollout.console.models.places import COUNTS, SERVICE
from rollout.console.render import render
from rollout.console.standing import is_live, judge_state, read_max_steps
from rollout.console.views.lines import RunLine
from rollout.errors import RolloutError
from rollout.report.gather import (
    describe_algorithm,
    describe_model,
    open_ledger,
    read_config,
    read_early_end,
)

PAGE_ROWS = 50

Entry = tuple[float, str, bool]
"""When it began, its name, and whether it is a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A page of the list: ``num_runs`` and ``num_models`` of all whose name has the filter in it."""

    lines: tuple[RunLine, ...]
    num_runs: int
    num_models: int
    page: int
    num_pages: int
    said: str


def list_entries(
    home: Path, models: ListedModels, *, wanted: str = "", page: int = 1, by_name: bool = False
) -> tuple[list[Entry], Listing]:
    """What is on a page, the newest first, and the page without its lines: nothing is opened."""
    runs = [
        (entry.stat().st_mtime, entry.parent.name, False)
        for entry in home.glob(f"*/{CONFIG}")
        if not entry.parent.name.startswith(".")
    ]
    named = [(made, name, True) for name, made in models.created.items()]
    found = [one for one in (*runs, *named) if wanted.lower() in one[1].lower()]
    found = sorted(found, key=lambda one: one[1]) if by_name else sorted(found)[::-1]
    pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(max(1, page), pages)
    num_models = sum(is_model for _, _, is_model in found)
    listing = Listing(
        lines=(),
        num_runs=len(found) - num_models,
        num_models=num_models,
        page=page,
        num_pages=pages,
        said=models.said,
    )
    return found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS], listing


def _lines(home: Path, entries: list[Entry], models: dict[str, RunLine]) -> Iterator[RunLine]:
    for _, name, is_model in entries:
        if not is_model:
            yield describe_folder(home / name)
        elif name in models:
            yield models[name]


def describe_folder(folder: Path) -> RunLine:
    """What a list shows of the run of a folder; of one that cannot be read, why."""
    try:
        return _read_line(folder)
    except RolloutError as error:
        early = read_early_end(folder)
        if early is not None:
            return RunLine(name=folder.name, state="Failed", said=early)
        return RunLine(name=folder.name, state=_beginning(folder), said=str(error))


def _beginning(folder: Path) -> str:
    """The state of a run whose ledger cannot be read: it may be about to make one."""
    return "Starting" if is_live(folder) else "Unreadable"


def _read_line(folder: Path) -> RunLine:
    spec = read_config(folder)["spec"]
    with open_ledger(folder) as ledger:
        run = ledger.run()
        last = ledger.steps(after=run.step - 1, limit=1) if run.step else ()
    return RunLine(
        name=folder.name,
        state=judge_state(run.outcome, live=is_live(folder)),
        created_at=run.created_at,
        algorithm=describe_algorithm(spec),
        model=describe_model(spec),
        step=run.step,
        max_steps=read_max_steps(spec),
        reward=last[0].metrics.get("reward") if last else None,
    )


routes = web.RouteTableDef()


@routes.get("/")
async def show_runs(request: web.Request) -> web.Response:
    """The runs and models, a page at a time."""
    wanted, page = word_of(request, "name"), page_of(request)
    by_name = choice_of(request, "sort", ("age", "name")) == "name"
    home, service, counts = request.app[HOME], request.app[SERVICE], request.app[COUNTS]

    def make() -> str:
        models = list_models(service)
        entries, listing = list_entries(home, models, wanted=wanted, page=page, by_name=by_name)
        names = [name for _, name, is_model in entries if is_model]
        lines = tuple(_lines(home, entries, model_lines(service, names, counts)))
        return render(
            "runs.html",
            home=home,
            service=service,
            listing=replace(listing, lines=lines),
            sweeps=any(home.glob("*/sweep.json")),
            wanted=wanted,
            by_name=by_name,
        )

    return await answer(request, make)
