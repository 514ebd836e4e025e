"""Sweeps of a folder of runs: what ``rollout sweep`` wrote down of its points, beside what each run says of itself. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from rollout.console.asking import CONFIG, HOME, answer, page_of
from rollout.console.render import render
from rollout.console.views.lines import RunLine
from rollout.console.views.listing import PAGE_ROWS, describe_folder
from rollout.errors import SpecError

BOOK = "sweep.json"
BOOK_BYTES_MAX = 16 << 20
SETTINGS_MAX = 16
"""Columns of settings; a sweep over more shows the first."""
SWEEPS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    """One point. ``run`` is what its run says, None for one that never began; ``rungs``: what it had at which step.

    ``forked_from``: the point that it began from, empty for one that begins with the model.
    """

    name: str
    values: tuple[str, ...]
    state: str
    run: RunLine | None
    rungs: str
    forked_from: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPage:
    """A page of a sweep's points. ``counts``: states of all of them, with how many have each."""

    name: str
    settings: tuple[str, ...]
    rows: tuple[PointRow, ...]
    counts: tuple[tuple[str, int], ...]
    page: int
    num_pages: int


def find_sweeps(home: Path) -> list[str]:
    """Folders with a sweep's book, the newest first."""
    found = [(one.stat().st_mtime, one.parent.name) for one in home.glob(f"*/{BOOK}")]
    names = [name for _, name in sorted(found)[::-1] if not name.startswith(".")]
    return names[:SWEEPS_MAX]


def read_sweep_page(home: Path, name: str, page: int) -> SweepPage:
    """A page of the points of a sweep. Raises SpecError for a folder that is none, and for a book that cannot be read."""
    points = read_points(home, name)
    settings = tuple(dict.fromkeys(key for one in points for key in one["settings"]))[:SETTINGS_MAX]
    num_pages = max(1, -(-len(points) // PAGE_ROWS))
    page = min(page, num_pages)
    shown = points[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    states = [one["state"].capitalize() for one in points]
    return SweepPage(
        name=name,
        settings=settings,
        rows=tuple(_row(home, one, settings) for one in shown),
        counts=tuple((state, states.count(state)) for state in dict.fromkeys(states)),
        page=page,
        num_pages=num_pages,
    )


def read_points(home: Path, name: str) -> list[dict[str, Any]]:
    """The points as the sweep's book has them, each with a name, settings and a state. Raises SpecError."""
    plain = name == Path(name).name and not name.startswith(".") and "\0" not in name
    path = home / name / BOOK
    if not plain or not path.is_file():
        raise SpecError(f"there is no sweep {name!r} in {home}: choose one of the list of sweeps")
    try:
        with path.open("rb") as file:
            text = file.read(BOOK_BYTES_MAX)  # of a larger one JSON is cut off, and refused
        return list(_parse_points(json.loads(text)))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {error}; give the sweep again") from error


def _parse_points(found: Any) -> Iterator[dict[str, Any]]:
    points = found.get("points") if isinstance(found, dict) else None
    if not isinstance(points, list):
        raise ValueError("there are no points in it")  # noqa: TRY004 - it is a file that is wrong
    for one in points:
        if not isinstance(one, dict) or not isinstance(one.get("settings"), dict):
            raise ValueError("a point has no settings")  # noqa: TRY004
        yield {**one, "name": str(one.get("name", "")), "state": str(one.get("state", ""))}


def _row(home: Path, point: Mapping[str, Any], settings: Sequence[str]) -> PointRow:
    run, state = _run_of(home, point), point["state"].capitalize()
    if state == "Running" and run is not None:
        state = run.state  # the sweep may be dead
    return PointRow(
        name=point["name"],
        values=tuple(str(point["settings"].get(key, "")) for key in settings),
        state=state,
        run=run,
        rungs=_describe_rungs(point.get("rungs")),
        forked_from=_describe_source(point.get("forked_from")),
        message=str(point.get("message") or ""),
    )


def _run_of(home: Path, point: Mapping[str, Any]) -> RunLine | None:
    """Only runs of this folder are led to."""
    folder = Path(str(point.get("run_dir") or "")).name
    if not folder or folder.startswith(".") or not (home / folder / CONFIG).is_file():
        return None
    return describe_folder(home / folder)


def _describe_rungs(rungs: Any) -> str:
    if not isinstance(rungs, list):
        return ""
    pairs = [(one.get("step"), one.get("value")) for one in rungs if isinstance(one, dict)]
    numbers = [(step, value) for step, value in pairs if _is_number(step) and _is_number(value)]
    return ", ".join(f"{value:.4g} at {step}" for step, value in numbers)


def _describe_source(found: Any) -> str:
    return str(found.get("name") or "") if isinstance(found, dict) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


routes = web.RouteTableDef()


@routes.get("/sweeps")
async def show_sweeps(request: web.Request) -> web.Response:
    """The sweeps of this folder."""
    home = request.app[HOME]
    return await answer(request, lambda: render("sweeps.html", home=home, sweeps=find_sweeps(home)))


@routes.get("/sweeps/{sweep}")
async def show_sweep(request: web.Request) -> web.Response:
    """The points of one sweep, with their settings, states and runs."""
    home, name, page = request.app[HOME], request.match_info["sweep"], page_of(request)
    return await answer(
        request, lambda: render("sweep.html", sweep=read_sweep_page(home, name, page))
    )
