"""A page of samples, and what a request may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rollout.errors import SpecError
from rollout.ledger.sql.browsing import Order, SampleQuery
from rollout.ledger.views import SampleExcerpt
from rollout.report.gather import open_ledger

PAGE_ROWS = 50
PAGES_MAX = 1_000_000
ENDING_CHARACTERS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """A page: ``more`` says whether another one follows; ``number`` of samples is None where nobody counted."""

    query: SampleQuery
    page: int
    rows: tuple[SampleExcerpt, ...]
    more: bool
    number: int | None
    last_step: int


def parse_query(given: Mapping[str, str]) -> SampleQuery:
    """What the address asks for. Raises SpecError that names the field."""
    wanted = given.get("sort", "place")
    order = next((one for one in get_args(Order) if one == wanted), None)
    if order is None:
        raise SpecError(f"sort={wanted[:40]}: choose one of {', '.join(get_args(Order))}")
    step = parse_number("step", given.get("step", ""), most=1 << 31)
    page = parse_number("page", given.get("page", ""), most=PAGES_MAX) or 1
    ending = given.get("ending") or None
    if ending is not None and len(ending) > ENDING_CHARACTERS_MAX:
        raise SpecError(f"ending: at most {ENDING_CHARACTERS_MAX} characters, got {len(ending)}")
    return SampleQuery(
        step=step, ending=ending, order=order, offset=(page - 1) * PAGE_ROWS, limit=PAGE_ROWS + 1
    )


def parse_number(name: str, text: str, *, most: int) -> int | None:
    """A number from 0 of an address; None where there is none. Raises SpecError."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > most:
        raise SpecError(f"{name}={text[:40]}: give a whole number from 0 to {most}")
    return int(text)


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
