"""The learner's group as data: which pods have checked in, where they meet, and what went wrong. Pure.

The name of a meeting (``rendezvous``) is made of the run, the incarnation and the processes that meet, so
that processes of two incarnations, or of two starts of one, never share a store key, and so that every
coordinator gives the same pods the same name. Each process brings 128 random bits (its nonce), which it tells
the coordinator only: nobody else can guess the name, and none is logged or put into a status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from blake3 import blake3

from rollout.protocol.status import GroupStatus

RENDEZVOUS_VARIABLE = "ROLLOUT_RENDEZVOUS"
"""Tells ranks the name that they meet under: the prefix of every key in their store."""

GroupStage = Literal["Joining", "Running", "Failed", "Done"]
MemberState = Literal["waiting", "working", "done", "failed"]


@dataclass(slots=True, kw_only=True)
class Member:
    """The pod of one node rank."""

    worker: str
    """Its name."""
    address: str
    """``HOST:PORT`` where the ranks of the others reach it."""
    nonce: str
    """Names one start of its process: 128 random bits, and nobody else's to know."""
    seen_at: float
    """When it last said anything, in seconds of the coordinator's clock."""
    state: MemberState = "waiting"
    """``waiting`` until the group is complete; ``done`` and ``failed`` are final for this start."""
    message: str = ""
    """Why it failed; empty unless it has."""


@dataclass(slots=True, kw_only=True)
class LearnerGroup:
    """One incarnation of the group."""

    uid: str
    """Of the run; begins the name of the meeting."""
    size: int
    """Pods, one for each node rank (``learner.nodes``)."""
    incarnation: int = 0
    """Of all its processes together; an older one's are fenced. 0: none has come yet."""
    since: float = 0.0
    """When it was first heard of, in seconds of the coordinator's clock; 0: never."""
    members: dict[int, Member] = field(default_factory=dict)
    """By node rank, those that have checked in."""
    rendezvous: str = ""
    """The name that they meet under; empty until all have checked in."""
    trouble: str = ""
    """Why the group has failed; empty while it has not."""

    def missing(self) -> tuple[int, ...]:
        """Ranks that have not checked in."""
        return tuple(rank for rank in range(self.size) if rank not in self.members)

    def addresses(self) -> tuple[str, ...]:
        """Where the pods are, by rank; only of a group that is complete."""
        return tuple(self.members[rank].address for rank in range(self.size))


def renew(group: LearnerGroup, incarnation: int, now: float) -> LearnerGroup:
    """The next incarnation, nobody there yet."""
    return LearnerGroup(uid=group.uid, size=group.size, incarnation=incarnation, since=now)


def check_in(group: LearnerGroup, rank: int, member: Member) -> None:
    """A process asks for its place; the group meets when it was the last that was missing."""
    known = group.members.get(rank)
    if known is not None and known.nonce == member.nonce:
        known.seen_at = member.seen_at
        return
    group.members[rank] = member
    if group.missing():
        return
    if all(one.state == "waiting" for one in group.members.values()):
        group.rendezvous, group.trouble = _name(group), ""
        for one in group.members.values():
            one.state = "working"
    elif group.rendezvous != _name(group):
        group.trouble = f"rank {rank} ({member.worker}) was started again while its group worked"


def _name(group: LearnerGroup) -> str:
    """What these processes, and no others, meet under."""
    nonces = "/".join(group.members[rank].nonce for rank in range(group.size))
    return f"{group.uid}/{group.incarnation}/{blake3(nonces.encode()).hexdigest()[:32]}"


def keep_alive(group: LearnerGroup, rank: int, member: Member, rendezvous: str) -> bool:
    """A process says where it works; False when that meeting is over. Teaches a new coordinator."""
    if group.rendezvous and group.rendezvous != rendezvous:
        return False
    known = group.members.get(rank)
    if known is not None and known.nonce != member.nonce:
        return False
    group.rendezvous = rendezvous
    group.members[rank] = member
    return True


def leave(group: LearnerGroup, rank: int, nonce: str, *, ok: bool, message: str) -> None:
    """A process' ranks have ended; told by one that was replaced, it changes nothing."""
    member = group.members.get(rank)
    if member is None or member.nonce != nonce:
        return
    member.state, member.message = ("done" if ok else "failed"), message
    if not ok:
        group.trouble = f"rank {rank} ({member.worker}) failed: {message}"


def describe(group: LearnerGroup, now: float, *, silent_seconds: float) -> GroupStatus:
    """What a person, or the operator, should know."""
    missing = group.missing()
    states = {member.state for member in group.members.values()}
    stage: GroupStage = "Joining"
    if group.trouble:
        stage = "Failed"
    elif states == {"done"} and not missing:
        stage = "Done"
    elif group.rendezvous:
        stage = "Running"
    return GroupStatus(
        incarnation=group.incarnation,
        size=group.size,
        stage=stage,
        missing=missing,
        message=group.trouble
        or describe_missing(group, now)
        or _describe_silent(group, now, silent_seconds),
    )


def describe_missing(group: LearnerGroup, now: float) -> str:
    """``rank 1 of 2 has not checked in for 12 s``; empty when all have."""
    missing = group.missing()
    if not missing:
        return ""
    ranks = ", ".join(str(rank) for rank in missing[:8]) + ("..." if len(missing) > 8 else "")
    has = "rank" if len(missing) == 1 else "ranks"
    return f"{has} {ranks} of {group.size} not checked in for {now - group.since:.0f} s"


def _describe_silent(group: LearnerGroup, now: float, silent_seconds: float) -> str:
    silent = [
        f"rank {rank} ({member.worker}) silent for {now - member.seen_at:.0f} s"
        for rank, member in sorted(group.members.items())
        if member.state == "working" and now - member.seen_at > silent_seconds
    ]
    return ", ".join(silent[:8])
