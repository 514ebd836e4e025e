"""The desk of the learner's pods: each asks for its place, and all get it once all are there.

Somebody outside (the operator) starts the pods of one incarnation, and starts all of them anew under the
next. Seats are kept in memory: pods ask again, or say where they work, so that a new coordinator learns
them within seconds. The newest incarnation is in the ledger: an older one is refused for good.
"""

from __future__ import annotations

import logging

from rollout.coordinator.calls.preemption import give_notice, may_save
from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import WAIT_MAX_SECONDS, RunContext, wait_for
from rollout.errors import CoordinatorError, Fenced
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope
from rollout.protocol.rendezvous import Member, check_in, describe_missing, keep_alive, leave, renew

log = logging.getLogger(__name__)


@answers(routes.JOIN)
async def join(run: RunContext, sender: Envelope, ask: m.Join) -> m.Joined:
    """A place for this pod, as soon as every pod of the group is there. Raises Fenced."""
    await _enter(run, ask.group, ask.rank)
    before = run.group.rendezvous
    check_in(run.group, ask.rank, _member(run, sender, ask))
    if run.group.rendezvous != before:
        log.info(
            "learner group meets incarnation=%d size=%d", run.group.incarnation, run.group.size
        )
        run.wake()
    deadline = run.clock() + min(ask.wait_seconds, WAIT_MAX_SECONDS)
    while True:
        ticket = run.changed.ticket()
        await _enter(run, ask.group, ask.rank)
        answer = _answer(run, ask)
        left = deadline - run.clock()
        if answer is not None or left <= 0:
            return answer or m.Joined(waiting=_waiting(run))
        await wait_for(ticket, min(left, run.plan.lease_seconds / 4))


def _answer(run: RunContext, ask: m.Join) -> m.Joined | None:
    """The place, or a reason to go; None while somebody is missing."""
    group = run.group
    if (reason := run.stop_reason()) is not None:
        return m.Joined(stop=reason)
    member = group.members[ask.rank]
    if member.nonce != ask.nonce:
        raise Fenced(f"another process of rank {ask.rank} has asked for its place since")
    member.seen_at = run.clock()
    if not group.rendezvous or group.trouble or group.missing():
        return None
    return m.Joined(rendezvous=group.rendezvous, addresses=group.addresses())


def _member(run: RunContext, sender: Envelope, ask: m.Join | m.Stay) -> Member:
    return Member(worker=sender.worker, address=ask.address, nonce=ask.nonce, seen_at=run.clock())


async def _enter(run: RunContext, incarnation: int, rank: int) -> None:
    """Raise Fenced for an older incarnation; go over to a newer one, durably."""
    group = run.group
    if incarnation < group.incarnation:
        raise Fenced(
            f"the learner's group is at incarnation {group.incarnation}, this pod is of {incarnation}"
        )
    if not 0 <= rank < group.size:
        raise CoordinatorError(
            f"rank {rank} asks for a place in a group of {group.size} (learner.nodes)"
        )
    if incarnation == group.incarnation:
        return
    async with run.turn:
        if incarnation > run.group.incarnation:
            await run.remember(group=incarnation)
            run.group = renew(run.group, incarnation, run.clock())
            log.info("learner group incarnation=%d size=%d", incarnation, run.group.size)


def _waiting(run: RunContext) -> str:
    if run.group.trouble:
        return f"a new incarnation of the group, because {run.group.trouble}"
    return describe_missing(run.group, run.clock()) or "the others of the group to ask again"


@answers(routes.STAY)
async def stay_in(run: RunContext, sender: Envelope, ask: m.Stay) -> m.Empty:
    """A pod's ranks work. Raises Fenced when their group is over."""
    await _enter(run, ask.group, ask.rank)
    member = _member(run, sender, ask)
    member.state = "working"
    if not keep_alive(run.group, ask.rank, member, ask.rendezvous):
        raise Fenced(f"rank {ask.rank} works in a meeting of the group that is over")
    return m.Empty()


@answers(routes.LEAVING)
async def leaving(run: RunContext, sender: Envelope, ask: m.Leaving) -> m.MayLeave:
    """A pod was told to go: the learner saves first, where it was asked to and can. Raises Fenced."""
    await _enter(run, ask.group, ask.rank)
    member = run.group.members.get(ask.rank)
    if member is not None and member.nonce != ask.nonce:
        raise Fenced(f"another process of rank {ask.rank} has asked for its place since")
    # A coordinator that has not heard of this process yet could be listening to an old copy of the call.
    saves = member is not None and ask.seconds > 0 and may_save(run) and run.stop_reason() is None
    if saves:
        give_notice(run, ask.seconds, sender.worker)
    return m.MayLeave(saves=saves)


@answers(routes.LEFT)
async def left(run: RunContext, sender: Envelope, ask: m.Left) -> m.Empty:
    """A pod's ranks have ended, well or not. Raises Fenced for a pod of an older incarnation."""
    await _enter(run, ask.group, ask.rank)
    leave(run.group, ask.rank, ask.nonce, ok=ask.ok, message=ask.message)
    log.info(
        "learner pod left worker=%s rank=%d ok=%s message=%s",
        sender.worker,
        ask.rank,
        ask.ok,
        ask.message,
    )
    run.wake()
    return m.Empty()
