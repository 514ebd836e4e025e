"""The runs of a folder: a page of the list, and how one run stands. Reads only; one ledger is open at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rollout.console.asking import CONFIG, HOME, answer, choice_of, page_of, word_of
from rollout.console.render import render
from rollout.console.standing import is_live, judge_state, read_max_steps
from rollout.errors import RolloutError
from rollout.report.gather import (
    describe_algorithm,
    describe_model,
    open_ledger,
    read_config,
    read_early_end,
)

PAGE_ROWS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run of the list. ``said`` is why it cannot be read; then the rest is empty."""

    name: str
    state: str
    created_at: float | None = None
    algorithm: str = ""
    model: str = ""
    step: int | None = None
    max_steps: int | None = None
    reward: float | None = None
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A page of the list: ``number`` of all runs whose name has the filter in it."""

    lines: tuple[RunLine, ...]
    number: int
    page: int
    num_pages: int


def list_runs(home: Path, *, wanted: str = "", page: int = 1, by_name: bool = False) -> Listing:
    """A page of the runs, the newest first; only the ledgers of this page are opened."""
    found = [
        (entry.stat().st_mtime, entry.parent.name)
        for entry in home.glob(f"*/{CONFIG}")
        if wanted.lower() in entry.parent.name.lower() and not entry.parent.name.startswith(".")
    ]
    names = [name for _, name in (sorted(found, key=_name_of) if by_name else sorted(found)[::-1])]
    pages = max(1, -(-len(names) // PAGE_ROWS))
    page = min(max(1, page), pages)
    shown = names[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    lines = tuple(_line(home / name) for name in shown)
    return Listing(lines=lines, number=len(names), page=page, num_pages=pages)


def _name_of(entry: tuple[float, str]) -> str:
    return entry[1]


def _line(folder: Path) -> RunLine:
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
    """The runs, a page at a time."""
    wanted, page = word_of(request, "name"), page_of(request)
    by_name = choice_of(request, "sort", ("age", "name")) == "name"
    home = request.app[HOME]

    def make() -> str:
        found = list_runs(home, wanted=wanted, page=page, by_name=by_name)
        return render("runs.html", home=home, listing=found, wanted=wanted, by_name=by_name)

    return await answer(request, make)
