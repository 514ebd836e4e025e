"""Claims that wait for work, and what a commit gives them in its own transaction: the tasks that it lets in.

Without that every actor would come back for a transaction of its own at the moment in which all of them wait. Whoever has
gone meanwhile holds leases that it does not know of: its next claim hands them out again, as after an answer that was lost.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from rollout.coordinator.context import RunContext, WaitingClaim
from rollout.coordinator.liveness import count_working
from rollout.ledger.records import Admission, ClaimRequest, Claims, Lease
from rollout.protocol import messages as m
from rollout.protocol.envelope import Envelope
from rollout.types import WeightVersion

WAITING_MAX = 64
"""Served by one commit: its transaction stays short, and the others ask by themselves."""


async def wait_for_work(
    run: RunContext, sender: Envelope, ask: m.Claim, ticket: asyncio.Event, seconds: float
) -> tuple[Lease, ...]:
    """Wait until something has changed, at most ``seconds``; the leases that a commit gave meanwhile."""
    waiting = WaitingClaim(sender=sender, ask=ask)
    run.claims.append(waiting)
    beat = asyncio.ensure_future(ticket.wait())
    try:
        both = (beat, waiting.granted)
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return waiting.granted.result() if waiting.granted.done() else ()
    finally:
        beat.cancel()
        if waiting in run.claims:
            run.claims.remove(waiting)


def take_waiting(run: RunContext) -> tuple[WaitingClaim, ...]:
    """Those that a commit may serve, the longest waiting first: none of a run that ends."""
    if run.stop_reason() is not None:
        return ()
    workers = run.state.workers
    alive = [
        one
        for one in run.claims
        if (known := workers.get(one.sender.worker)) is not None
        and known.outcome is None
        and known.incarnation == one.sender.incarnation
    ]
    return tuple(alive[:WAITING_MAX])


def build_requests(
    run: RunContext,
    waiting: Sequence[WaitingClaim],
    version: WeightVersion,
    admission: Admission,
    ordinal_end: int,
) -> tuple[ClaimRequest, ...]:
    """What each asks of a commit of ``version`` that lets ``admission`` in."""
    evaluations = sum(len(one.tasks) for one in admission.evaluations)
    num_open = run.state.num_open() + len(admission.tasks) + evaluations
    return tuple(
        build_request(run, one.sender, one.ask, version, num_open, ordinal_end) for one in waiting
    )


def build_request(
    run: RunContext,
    sender: Envelope,
    ask: m.Claim,
    version: WeightVersion,
    num_open: int,
    ordinal_end: int,
) -> ClaimRequest:
    """A claim as the ledger takes it."""
    return ClaimRequest(
        worker=sender.worker,
        incarnation=sender.incarnation,
        tasks_max=_fair_share(run, ask.tasks_max, num_open),
        held=ask.held,
        lease_seconds=run.plan.lease_seconds,
        lineage=version.lineage,
        step=version.step,
        ordinal_end=ordinal_end,
    )


def _fair_share(run: RunContext, tasks_max: int, num_open: int) -> int:
    """What one actor gets, so that the first to ask does not leave the others idle."""
    if num_open >= tasks_max * len(run.state.workers):
        return max(1, tasks_max)  # enough for everybody, whoever is alive
    alive = count_working(run)
    share = math.ceil(num_open / max(1, alive))
    return max(1, min(tasks_max, share)) if alive > 1 else max(1, tasks_max)


def grant(
    run: RunContext, waiting: Sequence[WaitingClaim], claims: Sequence[Claims | None]
) -> None:
    """Mirror what a commit has leased, and tell those who wait for it."""
    for one, found in zip(waiting, claims, strict=True):
        if found is None:
            continue
        run.state.free(found.freed)
        for lease in found.leases:
            run.state.lease(lease)
        if found.leases and not one.granted.done():
            one.granted.set_result(found.leases)
