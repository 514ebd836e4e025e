"""Steps: a page of the list, and one of them with its phases, staleness, groups and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from rollout.console.asking import answer, folder_of, page_of
from rollout.console.render import render
from rollout.errors import SpecError
from rollout.ledger.sql.browsing import read_groups
from rollout.ledger.views import ConsumedGroup, StepView
from rollout.report.gather import open_ledger
from rollout.tracking.last_step import flat_numbers

PAGE_ROWS = 50
NESTED = ("staleness_histogram", "phase_seconds", "reward_by_source", "reward_costs")
"""Metrics with a table of their own."""

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsPage:
    """A page of the committed steps, the newest first; ``last`` of all, ``more`` whether another page follows."""

    steps: tuple[StepView, ...]
    last: int
    page: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage:
    """One step: ``metrics`` are its plain numbers by name, ``histogram`` how many samples were how old.

    A number that is not finite is None where the page came from another process.
    """

    step: StepView
    last: int
    metrics: tuple[tuple[str, float | None], ...]
    phases: tuple[tuple[str, float, float], ...]
    histogram: tuple[tuple[int, int, float], ...]
    sources: tuple[tuple[str, float], ...]
    costs: tuple[tuple[str, float], ...]
    groups: tuple[ConsumedGroup, ...]
    page: int
    more: bool


def read_steps(folder: Path, page: int) -> StepsPage:
    """The steps of a page. Raises LedgerError."""
    with open_ledger(folder) as ledger:
        last = ledger.run().step
        end = max(0, last - (page - 1) * PAGE_ROWS)
        first = max(0, end - PAGE_ROWS)
        found = ledger.steps(after=first, limit=end - first) if end else ()
    return StepsPage(steps=tuple(found[::-1]), last=last, page=page, more=first > 0)


def read_step(folder: Path, number: int, page: int) -> StepPage:
    """One committed step with a page of its groups. Raises SpecError, LedgerError."""
    with open_ledger(folder) as ledger:
        last = ledger.run().step
        found = ledger.steps(after=number - 1, limit=1) if 1 <= number <= last else ()
        if not found:
            raise SpecError(f"step {number}: this run has committed steps 1 to {last}")
        with ledger.snapshot() as tx:
            groups = read_groups(tx, number, (page - 1) * PAGE_ROWS, PAGE_ROWS + 1)
    metrics = found[0].metrics
    plain = {name: value for name, value in metrics.items() if name not in NESTED}
    return StepPage(
        step=found[0],
        last=last,
        metrics=tuple(sorted(flat_numbers(plain).items())),
        phases=tuple(share_phases(found[0].phase_seconds)),
        histogram=tuple(share_histogram(metrics.get("staleness_histogram") or {})),
        sources=tuple(sorted((metrics.get("reward_by_source") or {}).items())),
        costs=tuple(sorted((metrics.get("reward_costs") or {}).items())),
        groups=groups[:PAGE_ROWS],
        page=page,
        more=len(groups) > PAGE_ROWS,
    )


def share_phases(seconds: dict[str, float]) -> list[tuple[str, float, float]]:
    """Each phase, its seconds and its share of them, the longest first."""
    whole = sum(seconds.values())
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return [(name, one, one / whole if whole else 0.0) for name, one in ranked]


def share_histogram(counts: dict[str, Any]) -> list[tuple[int, int, float]]:
    """Each age in steps, how many samples had it, and their share."""
    whole = sum(counts.values())
    ages = sorted((int(age), int(number)) for age, number in counts.items())
    return [(age, number, number / whole if whole else 0.0) for age, number in ages]


@routes.get("/runs/{run}/steps")
async def list_steps(request: web.Request) -> web.Response:
    """The steps, the newest first, a page at a time."""
    folder, page = folder_of(request), page_of(request)

    def make() -> str:
        return render("steps.html", run=folder.name, found=read_steps(folder, page))

    return await answer(request, make)


@routes.get(r"/runs/{run}/steps/{step:\d{1,10}}")
async def show_step(request: web.Request) -> web.Response:
    """One step."""
    folder, page = folder_of(request), page_of(request)
    number = int(request.match_info["step"])
    return await answer(
        request,
        lambda: render("step.html", run=folder.name, found=read_step(folder, number, page)),
    )
