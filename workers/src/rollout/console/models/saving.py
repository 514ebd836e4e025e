"""What a model was saved as under names, the newest first, and what became of each."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from rollout.console.asking import page_of
from rollout.console.models.counting import ModelCounts
from rollout.console.models.overview import read_head
from rollout.console.models.places import COUNTS, answer_of_model
from rollout.console.render import render
from rollout.service.reading.decoding import decode_thing
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.saves import read_changes
from rollout.service.registry import (
    PATH_SCHEME,
    AnySaved,
    SavedStanding,
    SavedState,
    SavedVersion,
)

PAGE_ROWS = 50

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLine:
    """One thing that was saved, with what became of it."""

    saved: AnySaved
    what: str
    created_at: float
    standing: SavedStanding


def read_saved(opened: OpenedModel, page: int) -> list[SavedLine]:
    """A page and one more. Raises LedgerError."""
    kinds = (SavedVersion.__name__, SavedState.__name__)
    start, skip = f"{PATH_SCHEME}{opened.model.id}/", (page - 1) * PAGE_ROWS
    lines = []
    for found in opened.book.under(kinds, start, skip, PAGE_ROWS + 1):
        saved = decode_thing(found.booked)
        assert isinstance(saved, SavedVersion | SavedState)
        line = SavedLine(
            saved=saved,
            what="state" if isinstance(saved, SavedState) else "weights",
            created_at=found.created_at,
            standing=read_changes(opened.book, saved),
        )
        lines.append(line)
    return lines


@routes.get("/models/{model}/saved")
async def list_saved(request: web.Request) -> web.Response:
    """A page of what was saved."""
    page, counts = page_of(request), request.app[COUNTS]
    return await answer_of_model(request, lambda opened: make_list(opened, counts, page))


def make_list(opened: OpenedModel, counts: ModelCounts, page: int) -> str:
    """The page. Raises LedgerError."""
    lines = read_saved(opened, page)
    with counts.look(opened, 0.0) as (standing, fold):
        head = read_head(opened, standing, fold)
    more = len(lines) > PAGE_ROWS
    return render("model_saved.html", head=head, lines=lines[:PAGE_ROWS], page=page, more=more)
