"""What the learner's pods say to the coordinator, to meet as one group."""

from __future__ import annotations

from rollout.protocol.messages.base import WireMessage


class Join(WireMessage, frozen=True, kw_only=True):
    """The pod of one node rank asks for its place in the learner's group, and waits for the others.

    ``group`` is the incarnation that the pod was started for; ``address`` is ``host:port``, where the
    group meets if this is rank 0. ``nonce`` names this start of the pod's process.
    """

    group: int
    rank: int
    address: str
    nonce: str
    wait_seconds: float = 0.0


class Joined(WireMessage, frozen=True, kw_only=True):
    """``rendezvous`` is empty while somebody is missing, and ``waiting`` says who.

    ``addresses`` are by rank. ``stop`` means: the run has no more work for a learner.
    """

    rendezvous: str = ""
    addresses: tuple[str, ...] = ()
    waiting: str = ""
    stop: str | None = None


class Stay(WireMessage, frozen=True, kw_only=True):
    """A pod's ranks work under ``rendezvous``."""

    group: int
    rank: int
    address: str
    nonce: str
    rendezvous: str


class Leaving(WireMessage, frozen=True, kw_only=True):
    """A pod was told to go (SIGTERM) while its ranks work; they may save for so long."""

    group: int
    rank: int
    nonce: str
    seconds: float


class MayLeave(WireMessage, frozen=True, kw_only=True):
    """``saves``: let the ranks work on, they are stopped at the next boundary; else end them now."""

    saves: bool


class Left(WireMessage, frozen=True, kw_only=True):
    """A pod's ranks have ended; the pod stays until it is deleted."""

    group: int
    rank: int
    nonce: str
    ok: bool
    message: str = ""
