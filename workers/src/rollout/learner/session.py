"""The learner's talk with the coordinator: every call under one worker name and incarnation.

On several ranks, rank 0 calls and all get the answer. Nothing here knows HTTP: ``Calls`` is the
coordinator's client, or anything else that keeps its promises (tests).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from msgspec.structs import replace

from rollout.errors import NotStored
from rollout.learner.model.parallel import Parallel
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.routes import A, Q, Route

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_WAIT_SECONDS = 2.0
"""How long one question for a batch waits at the coordinator; a signal is heeded between two."""


class Calls(Protocol):
    """The coordinator as the learner sees it; each call may be repeated without harm."""

    def as_worker(self, worker: str, incarnation: int = 0) -> Calls:
        """The same, calling as this worker."""
        ...

    def call(self, route: Route[Q, A], request: Q) -> A:
        """The answer to one call."""
        ...


OFFERS_MAX = 3
"""How often a call that names objects is made before one that is gone again fails the learner."""


def _offer(calls: Calls, route: Route[Q, A], request: Q) -> list[A]:
    """The answer, or none where an object is gone."""
    try:
        return [calls.call(route, request)]
    except NotStored as error:
        log.warning("stored again: %s", error)
        return []


def _is_answer(batch: m.Batch) -> bool:
    """Whether there is something to do for the learner."""
    return batch.waiting is None or batch.stop is not None or batch.store_again


class Session:
    """One incarnation of the learner. ``start`` first."""

    def __init__(self, calls: Calls | None, worker: str, parallel: Parallel) -> None:
        self._calls = None if calls is None else calls.as_worker(worker)
        self._worker = worker
        self._parallel = parallel

    def start(self, pid: int, host: str) -> m.LearnerStarted:
        """Begin; older incarnations can no longer commit."""
        started = self.call(routes.START, m.LearnerStart(pid=pid, host=host))
        if self._calls is not None:
            self._calls = self._calls.as_worker(self._worker, started.incarnation)
        return started

    def call(self, route: Route[Q, A], request: Q) -> A:
        """One call's answer, on every rank. Raises what the coordinator refuses it with."""
        return self._ask(route.answer, lambda calls: calls.call(route, request))

    def offer(self, route: Route[Q, A], request: Q, again: Callable[[], Q]) -> tuple[Q, A]:
        """A call that names what was stored, its last form and its answer; call on every rank.

        Equal bytes are one object, so that what was found in the store may be deleted, as another's, before the
        coordinator hears of it: ``again`` then stores it, and says what to call with. Raises as ``call``.
        """
        for _ in range(OFFERS_MAX - 1):
            answers = self._ask(list[route.answer], partial(_offer, route=route, request=request))
            if answers:
                return request, answers[0]
            request = again()
        return request, self.call(route, request)

    def next_batch(
        self,
        step: int,
        told_seconds: Callable[[], float | None],
        saving: Callable[[], tuple[int, int] | None],
    ) -> m.Batch:
        """The batch of ``step``, however long it takes, or the answer that says stop.

        ``told_seconds`` (asked on rank 0, between questions): how long this process, which was told to go,
        may still save; None: it was not told. The coordinator then says stop. ``saving`` (asked on every rank,
        before each question): the version whose anchor is being written.
        """

        def poll(calls: Calls) -> m.Batch:
            seconds = told_seconds()
            if seconds is None:
                return calls.call(routes.BATCH, ask)
            told = replace(ask, told_seconds=seconds, wait_seconds=0.0)
            return calls.call(routes.BATCH, told)

        while True:
            ask = m.BatchRequest(step=step, wait_seconds=BATCH_WAIT_SECONDS, saving=saving())
            batch = self._ask(m.Batch, poll)
            if _is_answer(batch):
                return batch

    def _ask(self, kind: type[T], call: Callable[[Calls], T]) -> T:
        def work() -> T:
            assert self._calls is not None, "rank 0 has the coordinator's client"
            return call(self._calls)

        return self._parallel.on_main(work, kind)
