"""Models of a training service as lines of the list of runs; a book that cannot be read hides no run."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rollout.console.models.counting import ModelCounts
from rollout.console.views.lines import RunLine
from rollout.errors import LedgerError
from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.reading.decoding import decode_thing
from rollout.service.reading.finding import BOOK, OpenedModel, has_book
from rollout.service.reading.standing import is_served, judge_state
from rollout.service.registry import ServiceModel

LISTED_MAX = 1024
"""Models of a book that are listed: as many as a service makes."""
COUNT_SECONDS = 0.1
"""All models of a page are counted for so long before it is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModels:
    """When each model of a book was made, by its id; ``said``: why there are none to be had."""

    created: dict[str, float] = field(default_factory=dict)
    said: str = ""


def list_models(service: Path) -> ListedModels:
    """The models of the service's book."""
    if not has_book(service):
        return ListedModels()
    try:
        with closing(CallBookReader(service / BOOK)) as book:
            found = islice(book.dated(ServiceModel.__name__), LISTED_MAX)
            return ListedModels(created={one.booked.id: one.created_at for one in found})
    except LedgerError as error:
        return ListedModels(said=str(error))


def model_lines(service: Path, names: list[str], counts: ModelCounts) -> dict[str, RunLine]:
    """A line for each of these models. Raises LedgerError for a book that cannot be opened any more."""
    if not names:
        return {}
    ends_at, served = time.monotonic() + COUNT_SECONDS, is_served(service)
    lines: dict[str, RunLine] = {}
    with closing(CallBookReader(service / BOOK)) as book:
        for name in names:
            try:
                seconds = max(0.0, ends_at - time.monotonic())
                lines[name] = _line(book, name, counts, seconds, served=served)
            except LedgerError as error:
                lines[name] = RunLine(name=name, state="Unreadable", said=str(error), is_model=True)
    return lines


def _line(
    book: CallBookReader, name: str, counts: ModelCounts, seconds: float, *, served: bool
) -> RunLine:
    found = book.thing(ServiceModel.__name__, name)
    model = None if found is None else decode_thing(found)
    if not isinstance(model, ServiceModel):
        raise LedgerError(f"{name} is no model of the book any more")
    opened = OpenedModel(book=book, folder=book.path.parent, model=model)
    with counts.look(opened, seconds) as (standing, fold):
        return RunLine(
            name=name,
            state=judge_state(standing, fold.damage, served=served),
            created_at=book.created_at(ServiceModel.__name__, name),
            algorithm=f"service, {standing.answered:,} of {standing.calls:,} calls answered",
            model=model.base,
            step=fold.steps.steps,
            is_model=True,
            counted=fold.is_whole(standing),
        )
