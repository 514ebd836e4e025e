"""Which model an address names, in which book, and what a page of it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from rollout.console.asking import answer
from rollout.console.models.counting import ModelCounts
from rollout.errors import SpecError
from rollout.service.reading.finding import OpenedModel, has_book, open_by_id

SERVICE: web.AppKey[Path] = web.AppKey("service", Path)
"""The folder of the training service whose models are shown."""
COUNTS: web.AppKey[ModelCounts] = web.AppKey("counts", ModelCounts)
ID_MAX = 200


async def answer_of_model(request: web.Request, make: Callable[[OpenedModel], str]) -> web.Response:
    """The page that ``make`` gives of the model that the address names, made in a thread."""

    def read() -> str:
        with open_asked(request) as opened:
            return make(opened)

    return await answer(request, read)


def open_asked(request: web.Request) -> OpenedModel:
    """The model that the address names, in its open book. Raises SpecError where there is none, LedgerError."""
    folder, name = request.app[SERVICE], request.match_info["model"]
    found = None
    if has_book(folder) and len(name) <= ID_MAX:
        found = open_by_id(folder, name)
    if found is None:
        raise SpecError(
            f"there is no model {name[:ID_MAX]!r} in the book of {folder}: choose one of the list of runs"
        )
    return found
