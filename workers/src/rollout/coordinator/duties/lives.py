"""Notes when which process lived, for what a run costs: once a minute, never for a step.

A process is noted within a second of its first word, so that a kill loses at most the last minute of those that
nobody hears again. What is not written (a full disk) is written by a later note. The end of a run is told to the operator
once its own was tried, for pods go as soon as it is, the coordinator's with them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout.coordinator.context import RunContext
from rollout.coordinator.rules.usage import sum_days
from rollout.coordinator.state import Worker
from rollout.errors import LedgerError, LedgerSuperseded
from rollout.ledger.records import LifeNote

log = logging.getLogger(__name__)

NOTE_SECONDS = 60.0
LOOK_SECONDS = 1.0
COORDINATOR = "coordinator"

Places = Callable[[str], Mapping[str, Any]]
"""What a process of a role stands on."""


@dataclass(slots=True, kw_only=True)
class Book:
    """What was noted last, by this coordinator. ``born``: its own incarnation. ``ended``: the run's end is noted."""

    places: Places
    born: int
    heard: dict[tuple[str, int], tuple[Worker, float]] = field(default_factory=dict)
    own_at: float | None = None
    ended: bool = False

    def due(self, workers: Mapping[str, Worker], now: float, *, last: bool) -> list[LifeNote]:
        """Notes that are to be written now; with ``last`` all that say anything new."""
        for one in workers.values():
            self.heard.setdefault((one.name, one.incarnation), (one, float("-inf")))
        notes = [
            self._note(worker.name, worker.incarnation, worker.role, now - worker.seen_at)
            for worker, noted_at in self.heard.values()
            if _is_due(
                noted_at, worker.seen_at, last=last or workers.get(worker.name) is not worker
            )
        ]
        if last or self.own_at is None or now - self.own_at >= NOTE_SECONDS:
            notes.append(self._note(COORDINATOR, self.born, COORDINATOR, 0.0))
        return notes

    def written(self, notes: list[LifeNote], workers: Mapping[str, Worker], now: float) -> None:
        """Remember what is durable; processes that others have replaced are heard no more."""
        for note in notes:
            if note.role == COORDINATOR:
                self.own_at = now
            else:
                key = (note.worker, note.incarnation)
                self.heard[key] = (self.heard[key][0], now - note.ago_seconds)
        self.heard = {
            key: (worker, at)
            for key, (worker, at) in self.heard.items()
            if workers.get(worker.name) is worker or worker.seen_at > at
        }

    def _note(self, worker: str, incarnation: int, role: str, ago_seconds: float) -> LifeNote:
        return LifeNote(
            worker=worker,
            incarnation=incarnation,
            role=role,
            place=dict(self.places(role)),
            ago_seconds=max(0.0, ago_seconds),
        )


def _is_due(noted_at: float, seen_at: float, *, last: bool) -> bool:
    return seen_at > noted_at if last else seen_at - noted_at >= NOTE_SECONDS


async def note(run: RunContext, book: Book, *, last: bool = False) -> None:
    """Write what is due, in one transaction. Raises LedgerError."""
    now, workers = run.clock(), dict(run.state.workers)
    ended = run.state.outcome is not None
    if notes := book.due(workers, now, last=last or (ended and not book.ended)):
        await run.ledger.note_lives(notes)
        book.written(notes, workers, now)
        book.ended = ended
        run.usage = sum_days(await run.ledger.lives())


def build_lives(places: Places) -> Callable[[RunContext], Coroutine[None, None, None]]:
    """The duty of a coordinator that notes lives until it ends."""

    async def lives(run: RunContext) -> None:
        book = Book(places=places, born=time.time_ns() // 1_000_000)
        run.usage_settled = False
        try:
            while True:
                await _attempt(run, book)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await _attempt(run, book, last=True)

    return lives


async def _attempt(run: RunContext, book: Book, *, last: bool = False) -> None:
    ended = run.state.outcome is not None
    try:
        await note(run, book, last=last)
    except LedgerSuperseded:
        run.superseded.set()
    except LedgerError as error:
        log.warning("lives are not noted, trying again reason=%s", error)
    if run.usage_settled != ended:  # also where it could not be written: no end waits for a bill
        run.usage_settled = ended
        run.changed.beat()
