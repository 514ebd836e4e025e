"""What the learner's pods say to the coordinator, to meet as one group."""

from __future__ import annotations

from rollout.protocol.messages.base import WireMessage


class Join(WireMessage, frozen=True, kw_only=True):
    """The pod of one node rank asks for its place in the learner's group, and waits for the others."""

    group: int
    """Incarnation that the pod was started for."""
    rank: int
    """Of the node, from 0."""
    address: str
    """``HOST:PORT`` where the group meets if this is rank 0."""
    nonce: str
    """Names this start of the pod's process: 128 random bits."""
    wait_seconds: float = 0.0
    """How long the answer may wait for the others."""


class Joined(WireMessage, frozen=True, kw_only=True):
    """A place in the group, or why there is none yet."""

    rendezvous: str = ""
    """Name that the ranks meet under; empty while somebody is missing."""
    addresses: tuple[str, ...] = ()
    """By rank."""
    waiting: str = ""
    """Who is missing."""
    stop: str | None = None
    """The run has no more work for a learner; None: it has."""


class Stay(WireMessage, frozen=True, kw_only=True):
    """A pod's ranks work."""

    group: int
    """As in ``Join``."""
    rank: int
    """As in ``Join``."""
    address: str
    """As in ``Join``."""
    nonce: str
    """As in ``Join``."""
    rendezvous: str
    """That they work under; another one means that the meeting is over."""


class Leaving(WireMessage, frozen=True, kw_only=True):
    """A pod is preempted (SIGTERM) while its ranks work."""

    group: int
    """As in ``Join``."""
    rank: int
    """As in ``Join``."""
    nonce: str
    """As in ``Join``."""
    seconds: float
    """That its ranks may save for."""


class MayLeave(WireMessage, frozen=True, kw_only=True):
    """Whether a preempted pod's ranks save first."""

    saves: bool
    """Let them work on, they are stopped at the next boundary; False: end them now."""


class Left(WireMessage, frozen=True, kw_only=True):
    """A pod's ranks have ended; the pod stays until it is deleted."""

    group: int
    """As in ``Join``."""
    rank: int
    """As in ``Join``."""
    nonce: str
    """As in ``Join``; of a start that was replaced nothing changes."""
    ok: bool
    """All of them have done their work."""
    message: str = ""
    """Why one has failed."""
