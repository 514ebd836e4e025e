"""Evaluations: every value with its interval, and two versions answer by answer: who won, who lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from rollout.console.asking import answer, choice_of, folder_of, number_of, page_of, word_of
from rollout.console.render import render
from rollout.errors import SpecError
from rollout.ledger.sql.browsing import MeasuredVersion, read_answers, read_rewards
from rollout.ledger.views import SampleExcerpt
from rollout.report.gather import evaluation_rows, open_ledger, read_best

PAGE_ROWS = 50
SHOWN = ("changed", "won", "lost", "all")

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """Two versions of one evaluation; ``rows`` are (place, before's answer, after's) of this page."""

    name: str
    split: str
    before: int
    after: int
    steps: tuple[int, ...]
    num_won: int
    num_lost: int
    num_same: int
    rows: tuple[tuple[int, SampleExcerpt | None, SampleExcerpt | None], ...]
    shown: str
    page: int
    more: bool


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """Each evaluation's values, the newest step first, with those that still run."""
    found: list[dict[str, Any]] = []
    with open_ledger(folder) as ledger:
        for view in reversed(ledger.evaluations()):
            rows = list(evaluation_rows(view)) or [
                {"name": view.name, "split": view.split, "step": view.step, "metric": None}
            ]
            found.extend({**row, "num_prompts": view.num_prompts} for row in rows)
    return found


def read_versus(
    folder: Path, key: tuple[str, str], steps: tuple[int | None, int | None], shown: str, page: int
) -> Versus:
    """The versions of two steps (the first and the last that were measured where None). Raises SpecError."""
    name, split = key
    with open_ledger(folder) as ledger:
        known = sorted(
            {v.step for v in ledger.evaluations() if (v.name, v.split) == key and v.summary}
        )
        if not known:
            raise SpecError(f"evaluation {name!r}, {split!r} split: nothing of it is finished")
        before, after = (
            given if given is not None else known[end]
            for given, end in zip(steps, (0, -1), strict=True)
        )
        if missing := {before, after} - set(known):
            raise SpecError(
                f"step {min(missing)}: {name} was measured at {', '.join(map(str, known))}"
            )
        sides = [MeasuredVersion(name=name, split=split, step=step) for step in (before, after)]
        with ledger.snapshot() as tx:
            old, new = (read_rewards(tx, side) for side in sides)
            places = choose_places(old, new, shown)
            start = (page - 1) * PAGE_ROWS
            here = places[start : start + PAGE_ROWS]
            texts = [read_answers(tx, side, here, ledger.have) if here else {} for side in sides]
    shared = old.keys() & new.keys()
    return Versus(
        name=name,
        split=split,
        before=before,
        after=after,
        steps=tuple(known),
        num_won=sum(new[at] > old[at] for at in shared),
        num_lost=sum(new[at] < old[at] for at in shared),
        num_same=sum(new[at] == old[at] for at in shared),
        rows=tuple((at, texts[0].get(at), texts[1].get(at)) for at in here),
        shown=shown,
        page=page,
        more=start + PAGE_ROWS < len(places),
    )


def choose_places(old: dict[int, float], new: dict[int, float], shown: str) -> list[int]:
    """The prompts to show, in order: those whose reward changed, rose, fell, or all that either has."""
    if shown == "all":
        return sorted(old.keys() | new.keys())
    signs = {"changed": (-1, 1), "won": (1,), "lost": (-1,)}[shown]
    shared = old.keys() & new.keys()
    return sorted(at for at in shared if (new[at] > old[at]) - (new[at] < old[at]) in signs)


@routes.get("/runs/{run}/evaluations")
async def show_evaluations(request: web.Request) -> web.Response:
    """What was measured."""
    folder = folder_of(request)
    return await answer(
        request,
        lambda: render(
            "evaluations.html",
            run=folder.name,
            rows=read_evaluations(folder),
            best=read_best(folder),
        ),
    )


@routes.get("/runs/{run}/versus")
async def show_versus(request: web.Request) -> web.Response:
    """Two versions, prompt by prompt."""
    folder, page, shown = folder_of(request), page_of(request), choice_of(request, "show", SHOWN)
    key = (word_of(request, "name"), word_of(request, "split"))
    steps = (number_of(request, "before"), number_of(request, "after"))
    return await answer(
        request,
        lambda: render(
            "versus.html",
            run=folder.name,
            found=read_versus(folder, key, steps, shown, page),
            choices=SHOWN,
        ),
    )
