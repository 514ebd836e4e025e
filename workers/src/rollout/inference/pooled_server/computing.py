"""The thread that computes: sequences of whoever asks, taken in turn, so that a short order never waits for a long one's end.

An order whose client has left is dropped before its next sequence. Bounded by ``orders_max`` waiting, ``sequences_max``
and ROW_TOKENS_MAX padded tokens at a time.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rollout.engines.pooled.module import PooledInput
from rollout.inference.embedded_server.orders import OrdersFull

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
ROW_TOKENS_MAX = 16_384
"""Of one forward, padding included; one sequence always."""
SPREAD_MAX = 2
"""The longest sequence of a forward has so many times the tokens of its shortest: more would be padding."""


class Computes(Protocol):
    """A model."""

    def compute(self, inputs: Sequence[PooledInput]) -> Tensor:
        """One row of numbers for each sequence."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class PooledJob:
    """One order under way. ``tell`` is called once, from the thread: all rows, or None where the model has failed."""

    inputs: Sequence[PooledInput]
    tell: Callable[[Tensor | None], None]
    gone: bool = False
    rows: dict[int, Tensor] = field(default_factory=dict)
    begun: int = 0


Place = tuple[PooledJob, int]


class ComputingThread:
    """Computes orders until ``stop``."""

    def __init__(
        self, model: Computes, *, sequences_max: int, orders_max: int, num_threads: int
    ) -> None:
        self._model = model
        self._sequences_max = sequences_max
        self._num_threads = num_threads
        self._waiting: queue.Queue[PooledJob] = queue.Queue(orders_max)
        self._running: list[PooledJob] = []
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it computes."""
        return self._thread.is_alive()

    def submit(self, job: PooledJob) -> None:
        """Take an order. Raises OrdersFull."""
        try:
            self._waiting.put_nowait(job)
        except queue.Full as error:
            raise OrdersFull("too many orders wait") from error

    def stop(self) -> None:
        """End the thread after its present sequences."""
        self._ending = True

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        while not self._ending:
            self._admit()
            for places in cut_rows(self._take()):
                self._compute(places)

    def _admit(self) -> None:
        """Have what waits take part, as far as there is room; wait where there is nothing to do."""
        self._running = [one for one in self._running if not one.gone]
        while len(self._running) < self._sequences_max:
            try:
                job = (
                    self._waiting.get_nowait()
                    if self._running
                    else self._waiting.get(timeout=IDLE_SECONDS)
                )
            except queue.Empty:
                return
            if not job.gone:
                self._running.append(job)

    def _take(self) -> list[Place]:
        """The next sequences, one of each order in turn."""
        taken: list[Place] = []
        jobs = list(self._running)
        while jobs and len(taken) < self._sequences_max:
            for job in jobs[: self._sequences_max - len(taken)]:
                taken.append((job, job.begun))
                job.begun += 1
            jobs = [one for one in jobs if one.begun < len(one.inputs)]
        return taken

    def _compute(self, places: Sequence[Place]) -> None:
        wanted = [(job, place) for job, place in places if not job.gone]
        if not wanted:
            return
        try:
            rows = self._model.compute([job.inputs[place] for job, place in wanted])
        except Exception:
            # What some sequences met (memory, a broken model) is told to their clients; the thread goes on.
            log.exception("sequences failed")
            for job in dict.fromkeys(job for job, _ in wanted):
                self._end(job, None)
            return
        for (job, place), row in zip(wanted, rows, strict=True):
            job.rows[place] = row
            if len(job.rows) == len(job.inputs):
                self._end(job, torch.stack([job.rows[i] for i in range(len(job.inputs))]))

    def _end(self, job: PooledJob, rows: Tensor | None) -> None:
        job.gone = True
        self._running = [one for one in self._running if one is not job]
        job.tell(rows)


def cut_rows(places: Sequence[Place]) -> list[list[Place]]:
    """Sequences of about one length together, each part within ROW_TOKENS_MAX when it is padded."""
    found: list[list[Place]] = []
    least = 0
    for place in sorted(places, key=_length):
        length = _length(place)
        part = found[-1] if found else []
        fits = part and length <= SPREAD_MAX * least and length * (len(part) + 1) <= ROW_TOKENS_MAX
        if fits:
            part.append(place)
        else:
            found.append([place])
            least = length
    return found


def _length(place: Place) -> int:
    job, index = place
    return len(job.inputs[index].ids)
