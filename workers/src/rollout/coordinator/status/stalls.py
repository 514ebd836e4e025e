"""Whether nothing moves any more, and who holds it up: told to the operator, which starts that worker anew.

A process that lives and does nothing looks healthy to everybody else: its probes pass, its lease is renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime

from rollout.coordinator.context import RunContext, Stuck
from rollout.coordinator.status.overview import build_status, phase
from rollout.protocol.status import Status, find_waited_for, rank_waits

log = logging.getLogger(__name__)

LOOKS = 10
"""Looks within the bound."""
Mark = tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class StallWatch:
    """Remembers when something moved last. ``look`` is to be called now and then."""

    seconds: float
    mark: Mark = ()
    since: float | None = None

    def look(self, run: RunContext) -> None:
        """Set or clear ``run.stuck``. A worker that was named has the whole time again."""
        now, status = run.clock(), build_status(run)
        mark = mark_of(status)
        if self.since is None or mark != self.mark or phase(run) not in {"Running", "Evaluating"}:
            self.mark, self.since, run.stuck = mark, now, None
        elif now - self.since > self.bound(run):
            run.stuck = describe(status, now - self.since, run.plan.lease_seconds)
            log.error("nothing moves worker=%s: %s", run.stuck.worker, run.stuck.message)
            self.since = now
            run.wake()

    def bound(self, run: RunContext) -> float:
        """``limits.noProgressSeconds``, as the run has it now."""
        limits = run.live.limits
        return self.seconds if limits is None else float(limits.no_progress_seconds)


def mark_of(status: Status) -> Mark:
    """What changes when a step, a sample or an evaluation has moved."""
    done = sum(one.num_done for one in status.evaluations)
    samples = sum(status.dispositions.values())
    return (status.lineage, status.step, samples, done, status.position)


def describe(status: Status, seconds: float, lease_seconds: float) -> Stuck:
    """What the run waits for, or who is waited for the longest; else who is silent beyond its lease; else nobody by name."""
    words = f"nothing has moved for {seconds:.0f} s"
    for first in rank_waits(status)[:1]:
        words += f"; {first.who} waits for {first.what} ({first.culprit})"
    return Stuck(worker=name_culprit(status, lease_seconds), message=words, at=datetime.now(UTC))


def name_culprit(status: Status, lease_seconds: float) -> str:
    """The worker to be started anew; empty where no one of them holds the run up."""
    waited_for = find_waited_for(status)
    if waited_for is not None:
        return waited_for.worker
    working = [worker for worker in status.workers if worker.outcome is None]
    silent = max(working, key=lambda one: one.heartbeat_age_seconds, default=None)
    if silent is None or silent.heartbeat_age_seconds <= lease_seconds:
        return ""
    return silent.worker


def build_watch(seconds: float) -> Callable[[RunContext], Coroutine[None, None, None]]:
    """The duty of a coordinator whose workers others start."""

    async def watch(run: RunContext) -> None:
        remembered = StallWatch(seconds=seconds)
        while True:
            remembered.look(run)
            await asyncio.sleep(max(0.1, remembered.bound(run) / LOOKS))

    return watch
