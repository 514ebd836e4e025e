"""Which workers were heard, and when: the one account of who is alive. A worker that was replaced is refused."""

from __future__ import annotations

from rollout.coordinator.context import RunContext
from rollout.coordinator.state import LEARNER, Worker
from rollout.errors import Fenced
from rollout.protocol.envelope import Envelope
from rollout.protocol.messages import Role

COUNTS_IN_TERM = 100
"""How often in a lease term the actors at work are counted at most."""


def record_heartbeat(run: RunContext, sender: Envelope, role: Role) -> Worker:
    """Note that a worker is alive. Raises Fenced when a newer process of it is known."""
    known = run.state.workers.get(sender.worker)
    name = LEARNER if role == "learner" else sender.worker
    newest = run.state.incarnations.get(name, 0) if known is None else known.incarnation
    if sender.incarnation < newest:
        raise Fenced(
            f"{sender.worker} is now at incarnation {newest}, this call came from"
            f" {sender.incarnation}"
        )
    if known is None:  # this coordinator is younger than the worker
        known = Worker(
            name=sender.worker, role=role, incarnation=sender.incarnation, seen_at=run.clock()
        )
        run.state.workers[sender.worker] = known
    known.incarnation, known.seen_at = sender.incarnation, run.clock()
    return known


def is_alive(run: RunContext, worker: str, now: float) -> bool:
    """Whether the worker was heard within one lease term."""
    known = run.state.workers.get(worker)
    seen = run.started_at if known is None else known.seen_at
    return now - seen < run.plan.lease_seconds


def working_actors(run: RunContext) -> list[Worker]:
    """Actors that were heard within one lease term and have not ended."""
    now = run.clock()
    return [
        worker
        for worker in run.state.workers.values()
        if worker.role == "actor" and worker.outcome is None and is_alive(run, worker.name, now)
    ]


def count_working(run: RunContext) -> int:
    """How many actors work, as of a hundredth of a lease term ago at most: to share out tasks needs no more.

    Every claim of many actors asks for it; counted each time, a claim would cost as much as there are actors.
    """
    counted_at, among, number = run.waits.working
    now, workers = run.clock(), len(run.state.workers)
    if among != workers or now - counted_at >= run.plan.lease_seconds / COUNTS_IN_TERM:
        number = len(working_actors(run))
        run.waits.working = (now, workers, number)
    return number
