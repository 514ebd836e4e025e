"""The learner's talk with the coordinator: every call under one worker name and incarnation.

On several ranks, rank 0 calls and all get the answer. Nothing here knows HTTP: ``Calls`` is the
coordinator's client, or anything else that keeps its promises (tests).
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Protocol, TypeVar

from msgspec.structs import replace

from rollout.learner.model.parallel import Parallel
from rollout.protocol import messages as m
from rollout.types import WeightVersion

T = TypeVar("T")

BATCH_WAIT_SECONDS = 2.0
"""How long one question for a batch waits at the coordinator; a signal is heeded between two."""


class Calls(Protocol):
    """The coordinator as the learner sees it; each call may be repeated without harm."""

    def start_learner(self, *, worker: str, pid: int = 0, host: str = "") -> m.LearnerStarted:
        """Begin an incarnation."""
        ...

    def publish_initial(
        self, *, worker: str, incarnation: int, version: WeightVersion, chain: str = ""
    ) -> None:
        """Announce version 0."""
        ...

    def batch(self, ask: m.BatchRequest) -> m.Batch:
        """The next batch, or why there is none yet."""
        ...

    def replay(self, *, worker: str, incarnation: int, step: int) -> m.Batch:
        """A committed step's batch."""
        ...

    def commit(self, ask: m.Commit) -> m.Committed:
        """Make one step durable."""
        ...

    def anchor(self, *, worker: str, incarnation: int, manifest: m.AnchorManifest) -> None:
        """Report a durable anchor."""
        ...

    def fork(self, ask: m.Fork) -> m.Forked:
        """Open a new lineage."""
        ...

    def stored_again(self, *, worker: str, incarnation: int, version: WeightVersion) -> None:
        """Name the new object of a version."""
        ...


def _is_answer(batch: m.Batch) -> bool:
    """Whether there is something to do for the learner."""
    return batch.waiting is None or batch.stop is not None or batch.store_again


class Session:
    """One incarnation of the learner. ``start`` first."""

    def __init__(self, calls: Calls | None, worker: str, parallel: Parallel) -> None:
        self._calls = calls
        self._worker = worker
        self._parallel = parallel
        self._incarnation = 0

    @property
    def worker(self) -> str:
        """This learner's name."""
        return self._worker

    @property
    def incarnation(self) -> int:
        """As the coordinator gave it; 0 before ``start``."""
        return self._incarnation

    def start(self, pid: int, host: str) -> m.LearnerStarted:
        """Begin; older incarnations can no longer commit."""
        started = self._ask(
            m.LearnerStarted,
            lambda calls: calls.start_learner(worker=self._worker, pid=pid, host=host),
        )
        self._incarnation = started.incarnation
        return started

    def publish_initial(self, version: WeightVersion, chain: str) -> None:
        """Announce version 0."""
        self._ask(
            NoneType,
            lambda calls: calls.publish_initial(
                worker=self._worker, incarnation=self._incarnation, version=version, chain=chain
            ),
        )

    def next_batch(self, step: int, told_seconds: Callable[[], float | None]) -> m.Batch:
        """The batch of ``step``, however long it takes, or the answer that says stop.

        ``told_seconds`` (asked on rank 0, between questions): how long this process, which was told to go,
        may still save; None: it was not told. The coordinator then says stop.
        """
        ask = m.BatchRequest(
            worker=self._worker,
            incarnation=self._incarnation,
            step=step,
            wait_seconds=BATCH_WAIT_SECONDS,
        )

        def poll(calls: Calls) -> m.Batch:
            seconds = told_seconds()
            if seconds is None:
                return calls.batch(ask)
            return calls.batch(replace(ask, told_seconds=seconds, wait_seconds=0.0))

        while not _is_answer(batch := self._ask(m.Batch, poll)):
            pass
        return batch

    def replay(self, step: int) -> m.Batch:
        """The recorded batch of a committed step."""
        return self._ask(
            m.Batch,
            lambda calls: calls.replay(
                worker=self._worker, incarnation=self._incarnation, step=step
            ),
        )

    def commit(self, ask: m.Commit) -> m.Committed:
        """Make one step durable. Raises CoordinatorError when it is refused."""
        return self._ask(m.Committed, lambda calls: calls.commit(ask))

    def anchor(self, manifest: m.AnchorManifest) -> None:
        """Report a durable anchor."""
        self._ask(
            NoneType,
            lambda calls: calls.anchor(
                worker=self._worker, incarnation=self._incarnation, manifest=manifest
            ),
        )

    def fork(self, *, step: int, version: WeightVersion, chain: str, reason: str) -> int:
        """Open a new lineage after ``step`` and return it."""
        return self._ask(
            m.Forked,
            lambda calls: calls.fork(
                m.Fork(
                    worker=self._worker,
                    incarnation=self._incarnation,
                    step=step,
                    version=version,
                    chain=chain,
                    reason=reason,
                )
            ),
        ).lineage

    def stored_again(self, version: WeightVersion) -> None:
        """Report the committed version's new object."""
        self._ask(
            NoneType,
            lambda calls: calls.stored_again(
                worker=self._worker, incarnation=self._incarnation, version=version
            ),
        )

    def _ask(self, kind: type[T], call: Callable[[Calls], T]) -> T:
        def work() -> T:
            assert self._calls is not None, "rank 0 has the coordinator's client"
            return call(self._calls)

        return self._parallel.on_main(work, kind)
