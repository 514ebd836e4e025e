"""The thread that decodes: batches of whoever came together, each a token further in turn.

A request never waits for another's last token: what came while a batch was under way is a batch of its own, and the thread
goes round. A completion whose client has left is dropped before its next token. Bounded by ``samples_max`` at a time
and ``orders_max`` waiting.

Axes: S samples of one batch, V vocabulary.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from rollout.engines.embedded.batch import BatchSize, Decoder, DecodingBatch
from rollout.inference.embedded_server.orders import DecodeOrder, OrdersFull
from rollout.inference.embedded_server.sampling import PickedToken, RowSampler, pick_rows

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0

Tell = Callable[[int, PickedToken | None, str | None], None]
"""Sample's place, its next token, and how it ended; a token of None with ``error``: the decoder has failed."""


@dataclass(slots=True, kw_only=True, eq=False)
class DecodeJob:
    """One order under way. ``left`` are the places of samples that nobody wants any more; ``gone``: none is."""

    order: DecodeOrder
    tell: Tell
    stop_ids: frozenset[int]
    gone: bool = False
    left: set[int] = field(default_factory=set)


@dataclass(slots=True, kw_only=True, eq=False)
class _Row:
    job: DecodeJob
    place: int
    sampler: RowSampler
    num_tokens: int = 0

    @property
    def unwanted(self) -> bool:
        return self.job.gone or self.place in self.job.left


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    rows: list[_Row]
    batch: DecodingBatch
    tokens: list[int] = field(default_factory=list)


class DecodeThread:
    """Decodes orders until ``stop``. ``tell`` of an order is called from the thread."""

    def __init__(
        self, decoder: Decoder, *, samples_max: int, orders_max: int, num_threads: int
    ) -> None:
        self._decoder = decoder
        self._samples_max = samples_max
        self._num_threads = num_threads
        self._waiting: queue.Queue[DecodeJob | None] = queue.Queue(orders_max)
        self._running: list[_Running] = []
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it decodes."""
        return self._thread.is_alive()

    @property
    def num_samples(self) -> int:
        """Samples being decoded now."""
        return sum(len(one.rows) for one in self._running)

    def submit(self, job: DecodeJob) -> None:
        """Take an order. Raises OrdersFull."""
        try:
            self._waiting.put_nowait(job)
        except queue.Full as error:
            raise OrdersFull("too many orders wait") from error

    def stop(self) -> None:
        """End the thread after its present token."""
        self._ending = True

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        with torch.inference_mode():
            while not self._ending:
                self._admit()
                for running in list(self._running):
                    self._guarded(running)

    def _admit(self) -> None:
        """Begin what waits, as far as there is room; wait where there is nothing to do."""
        jobs = self._take()
        ragged = self._decoder.takes_ragged_prompts
        for together in [jobs] if ragged and jobs else [[job] for job in jobs]:
            try:
                self._running.append(self._open(together))
            except Exception:
                # One batch that cannot be opened (memory) is told to its clients; the thread goes on.
                log.exception("a batch could not be opened")
                _fail(together)

    def _take(self) -> list[DecodeJob]:
        taken: list[DecodeJob] = []
        size = self.num_samples
        while size < self._samples_max:
            try:
                idle = not (taken or self._running)
                job = (
                    self._waiting.get(timeout=IDLE_SECONDS) if idle else self._waiting.get_nowait()
                )
            except queue.Empty:
                break
            if job is not None and not job.gone:
                taken.append(job)
                size += len(job.order.seeds)
        return taken

    def _open(self, jobs: Sequence[DecodeJob]) -> _Running:
        rows = [
            _Row(job=job, place=place, sampler=RowSampler(seed, job.order.sampling))
            for job in jobs
            for place, seed in enumerate(job.order.seeds)
        ]
        prompts = [row.job.order.prompt_ids for row in rows]
        longest = max(job.order.sampling.max_tokens for job in jobs)
        batch = self._decoder.open(prompts, BatchSize(group_size=1, new_tokens_max=longest))
        return _Running(rows=rows, batch=batch)

    def _guarded(self, running: _Running) -> None:
        try:
            self._step(running)
        except Exception:
            # What one batch met (memory, a broken model) is told to its clients; the thread goes on.
            log.exception("a batch failed")
            _fail([row.job for row in running.rows])
            running.rows = []
        if not running.rows:
            self._running.remove(running)

    def _step(self, running: _Running) -> None:
        if running.tokens:
            self._drop(running, [not row.unwanted for row in running.rows])
            if not running.rows:
                return
            logits_SV = running.batch.step(torch.tensor(running.tokens))
        else:
            logits_SV = running.batch.first()
        rows = running.rows
        picked = pick_rows(
            [row.sampler for row in rows], logits_SV, [row.num_tokens for row in rows]
        )
        running.tokens = [one.token_id for one in picked]
        self._drop(running, [_go_on(row, one) for row, one in zip(rows, picked, strict=True)])

    def _drop(self, running: _Running, kept: Sequence[bool]) -> None:
        if all(kept):
            return
        places = [i for i, keep in enumerate(kept) if keep]
        running.rows = [running.rows[i] for i in places]
        running.tokens = [running.tokens[i] for i in places]
        if places:
            kept_S = torch.tensor(places)
            running.batch.keep(kept_S, kept_S)


def _go_on(row: _Row, picked: PickedToken) -> bool:
    """Tell of a token; whether another shall follow."""
    job, sampling = row.job, row.job.order.sampling
    row.num_tokens += 1
    stopped = picked.token_id in job.stop_ids
    finish = "stop" if stopped else "length" if row.num_tokens >= sampling.max_tokens else None
    job.tell(row.place, picked, finish)
    return finish is None


def _fail(jobs: Sequence[DecodeJob]) -> None:
    for job in dict.fromkeys(jobs):
        for place in range(len(job.order.seeds)):
            job.tell(place, None, "error")
