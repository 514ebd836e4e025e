"""What the learner's pods and the operator say to the coordinator; see ``messages``."""

from __future__ import annotations

from typing import Any

import msgspec

from rollout.protocol.messages import Message

# -- the learner's pods ----------------------------------------------------------------------------


class Join(Message, frozen=True, kw_only=True):
    """The pod of one node rank asks for its place in the learner's group, and waits for the others.

    ``group`` is the incarnation that the pod was started for; ``address`` is ``host:port``, where the
    group meets if this is rank 0. ``nonce`` names this start of the pod's process.
    """

    worker: str
    group: int
    rank: int
    address: str
    nonce: str
    wait_seconds: float = 0.0


class Joined(Message, frozen=True, kw_only=True):
    """``rendezvous`` is empty while somebody is missing, and ``waiting`` says who.

    ``addresses`` are by rank. ``stop`` means: the run has no more work for a learner.
    """

    rendezvous: str = ""
    addresses: tuple[str, ...] = ()
    waiting: str = ""
    stop: str | None = None


class Stay(Message, frozen=True, kw_only=True):
    """A pod's ranks work under ``rendezvous``."""

    worker: str
    group: int
    rank: int
    address: str
    nonce: str
    rendezvous: str


class Leaving(Message, frozen=True, kw_only=True):
    """A pod was told to go (SIGTERM) while its ranks work; they may save for so long."""

    worker: str
    group: int
    rank: int
    nonce: str
    seconds: float


class MayLeave(Message, frozen=True, kw_only=True):
    """``saves``: let the ranks work on, they are stopped at the next boundary; else end them now."""

    saves: bool


class Left(Message, frozen=True, kw_only=True):
    """A pod's ranks have ended; the pod stays until it is deleted."""

    worker: str
    group: int
    rank: int
    nonce: str
    ok: bool
    message: str = ""


# -- the operator ---------------------------------------------------------------------------------


class Stop(Message, frozen=True, kw_only=True):
    """End the run early; workers save what they have. The run can be resumed."""

    reason: str


class Settings(Message, frozen=True, kw_only=True):
    """Live settings of one generation of the run's object; ``live`` is a ``rollout_api.live.LiveSettings``.

    An older generation than the last is refused (StaleSettings).
    """

    generation: int
    live: dict[str, Any] = msgspec.field(default_factory=dict)


class SettingsTaken(Message, frozen=True, kw_only=True):
    """``deferred`` says what takes effect with the next run attempt only, and why."""

    generation: int
    deferred: tuple[str, ...] = ()
