"""A page of samples, and what a request may ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from aiohttp import web

from rollout.console.asking import answer, choice_of, folder_of, number_of, page_of, word_of
from rollout.console.lineage import draw_lineage, list_boxes
from rollout.console.render import render
from rollout.errors import SpecError
from rollout.ledger.sql.browsing import Hits, Order, SampleQuery, search
from rollout.ledger.views import SampleExcerpt
from rollout.report.gather import is_offline, open_ledger

PAGE_ROWS = 50

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """A page: ``more`` says whether another one follows; ``number`` of samples is None where nobody counted."""

    query: SampleQuery
    page: int
    rows: tuple[SampleExcerpt, ...]
    more: bool
    number: int | None
    last_step: int


def query_of(request: web.Request) -> SampleQuery:
    """What the address asks for. Raises SpecError that names the field."""
    wanted = choice_of(request, "sort", get_args(Order))
    return SampleQuery(
        step=number_of(request, "step"),
        ending=word_of(request, "ending") or None,
        order=next(one for one in get_args(Order) if one == wanted),
        offset=(page_of(request) - 1) * PAGE_ROWS,
        limit=PAGE_ROWS + 1,
    )


def read_page(folder: Path, query: SampleQuery) -> SamplePage:
    """The page. Raises LedgerError, and SpecError for a step that is not there."""
    with open_ledger(folder) as ledger:
        last = ledger.run().step
        if query.step is not None and not 1 <= query.step <= max(1, last):
            raise SpecError(f"step={query.step}: this run has committed steps 1 to {last}")
        rows = ledger.browse(query)
        number = None
        if query.ending is None:
            number = (
                ledger.dispositions().get("consumed", 0)
                if query.step is None
                else sum(v.num_consumed for v in ledger.steps(after=query.step - 1, limit=1))
            )
    return SamplePage(
        query=query,
        page=query.offset // PAGE_ROWS + 1,
        rows=rows[:PAGE_ROWS],
        more=len(rows) > PAGE_ROWS,
        number=number,
        last_step=last,
    )


def read_hits(folder: Path, text: str, newest: int | None, ending: str | None) -> Hits:
    """What a search for ``text`` finds from step ``newest`` down. Raises LedgerError."""
    with open_ledger(folder) as ledger, ledger.snapshot() as tx:
        return search(tx, text, newest, ending, ledger.have)


@routes.get("/runs/{run}/samples")
async def show_samples(request: web.Request) -> web.Response:
    """A page of what a run was trained on."""
    folder, query = folder_of(request), query_of(request)
    text = word_of(request, "text")
    if text:
        newest = number_of(request, "newest")
        return await answer(
            request,
            lambda: render(
                "found.html",
                run=folder.name,
                text=text,
                ending=query.ending,
                hits=read_hits(folder, text, newest, query.ending),
            ),
        )
    return await answer(
        request,
        lambda: render(
            "samples.html",
            run=folder.name,
            found=read_page(folder, query),
            offline=is_offline(folder),
        ),
    )


@routes.get("/runs/{run}/sample")
async def show_sample(request: web.Request) -> web.Response:
    """One sample: what was asked, answered and given for it, and where it came from."""
    folder = folder_of(request)
    task, number = sample_of(request)

    def make() -> str:
        with open_ledger(folder) as ledger:
            trace = ledger.sample(task, number)
        lineage = draw_lineage(list_boxes(trace))
        return render("sample.html", run=folder.name, trace=trace, lineage=lineage)

    return await answer(request, make)


def sample_of(request: web.Request) -> tuple[str, int]:
    """The task and the sample that an address names. Raises SpecError."""
    task, number = word_of(request, "task"), number_of(request, "sample")
    if not task or number is None:
        raise SpecError("an address of a sample has task=... and sample=...: choose one of a list")
    return task, number
