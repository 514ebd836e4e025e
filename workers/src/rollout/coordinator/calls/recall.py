"""Slow groups: asked back from an actor that is late with them, or for one that has nothing to do.

Decided at heartbeats, from what actors say of their samples. The actor returns what it has, the ledger
ends its attempt, and the next claim goes on from there under another epoch: at no time do two attempts
count. An actor that does not return a group past its deadline loses it, with what it had.
"""

from __future__ import annotations

import logging
from collections import defaultdict

from rollout.coordinator.context import RunContext
from rollout.coordinator.liveness import working_actors
from rollout.coordinator.plan import StragglerPlan
from rollout.coordinator.revocation import revoke_leases
from rollout.coordinator.rules.recall_state import RecallRequest
from rollout.coordinator.rules.stragglers import Idle, WorkerLoad, deadline_seconds, plan_steals
from rollout.coordinator.state import Worker
from rollout.errors import Fenced
from rollout.ledger.records import Lease
from rollout.protocol import messages as m

log = logging.getLogger(__name__)

IDLE_MAX = 2
"""Idle actors that one look finds work for: a look weighs every sample under way, on the event loop."""


def note_progress(worker: Worker, ask: m.Heartbeat) -> None:
    """Remember how far an actor is."""
    worker.progress = ask.progress
    worker.pace = ask.tokens_per_second or worker.pace


async def recall_tasks(run: RunContext, worker: Worker) -> tuple[str, ...]:
    """What this actor is to return now. Nothing where time decides nothing (Exact)."""
    plan = run.plan.train.stragglers
    if plan is None:
        return ()
    _forget_done(run)
    _request_overdue(run, plan)
    _request_steals(run, plan)
    await _lose_patience(run)
    return tuple(
        task_id
        for task_id in run.recalls.requests
        if (lease := run.state.leases.get(task_id)) is not None and lease.worker == worker.name
    )


def _forget_done(run: RunContext) -> None:
    recalls, leases = run.recalls, run.state.leases
    epochs = {task_id: lease.epoch for task_id, lease in leases.items()}
    recalls.requests = {t: w for t, w in recalls.requests.items() if epochs.get(t) == w.epoch}
    recalls.begun = {key: at for key, at in recalls.begun.items() if epochs.get(key[0]) == key[1]}
    known = {group.task.task_id for group in run.state.groups.values()}
    for task_id in [t for t in recalls.times if t not in known and t not in leases]:
        del recalls.times[task_id]


def _request(run: RunContext, lease: Lease, request: RecallRequest) -> None:
    recalls, task_id = run.recalls, lease.task.task_id
    recalls.requests[task_id] = request
    recalls.times[task_id] += 1
    recalls.told[request.why] += 1
    log.info("asking back task=%s worker=%s why=%s", task_id, lease.worker, request.why)


def _request_overdue(run: RunContext, plan: StragglerPlan) -> None:
    """Groups that are drawn for longer than the longest samples take, while others could go on with them."""
    now, recalls = run.clock(), run.recalls
    if len(working_actors(run)) < 2:
        return
    for worker in working_actors(run):
        longest = deadline_seconds(worker.pace, recalls.lengths, plan.deadline_factor)
        for task in worker.progress:
            lease = _lease_of(run, worker, task.task_id)
            if lease is None or not task.running:
                continue
            begun = recalls.begun.setdefault((task.task_id, lease.epoch), now)
            if longest and now - begun > longest and task.task_id not in recalls.settled:
                _request(run, lease, RecallRequest(epoch=lease.epoch, asked_at=now, why="deadline"))


def _request_steals(run: RunContext, plan: StragglerPlan) -> None:
    """While somebody waits for work and none is open, what would end sooner with them."""
    state, recalls = run.state, run.recalls
    idle = [
        Idle(worker=w.name, pace=w.pace) for w in working_actors(run) if w.name in run.waits.idle
    ]
    idle = idle[len(recalls.requests) :][:IDLE_MAX]
    soon = run.clock() - recalls.looked_at < run.plan.heartbeat_seconds / 2
    if not idle or state.num_open() or soon:
        return
    recalls.looked_at = run.clock()
    loads = [
        WorkerLoad(
            worker=worker.name,
            pace=worker.pace,
            tasks=tuple(t for t in worker.progress if _lease_of(run, worker, t.task_id)),
        )
        for worker in working_actors(run)
        if worker.progress and worker.name not in run.waits.idle
    ]
    found = plan_steals(loads, idle, recalls.lengths, plan.steal_margin_seconds, recalls.settled)
    for task_id in found:
        lease = state.leases[task_id]
        _request(run, lease, RecallRequest(epoch=lease.epoch, asked_at=run.clock(), why="steal"))


async def _lose_patience(run: RunContext) -> None:
    """One lease term after it was asked, an overdue group is taken; a wish to steal is given up."""
    now, recalls = run.clock(), run.recalls
    old = {t: w for t, w in recalls.requests.items() if now - w.asked_at > run.plan.lease_seconds}
    taken: dict[tuple[str, int], list[Lease]] = defaultdict(list)
    for task_id, request in old.items():
        del recalls.requests[task_id]
        lease = run.state.leases.get(task_id)
        if request.why == "deadline" and lease is not None and lease.epoch == request.epoch:
            taken[lease.worker, lease.incarnation].append(lease)
    for leases in taken.values():
        await _take(run, leases)


async def _take(run: RunContext, leases: list[Lease]) -> None:
    try:
        await revoke_leases(run, leases, "past its deadline, and not returned")
    except Fenced:
        return  # a newer process of that worker is there: its tasks are free already
    run.recalls.told["taken"] += len(leases)
    run.wake()


def _lease_of(run: RunContext, worker: Worker, task_id: str) -> Lease | None:
    lease = run.state.leases.get(task_id)
    mine = lease is not None and (lease.worker, lease.incarnation) == (
        worker.name,
        worker.incarnation,
    )
    return lease if mine else None
