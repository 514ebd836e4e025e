"""What every message is, and what workers of every role say.

Unknown fields are ignored, missing optional ones take their default, so a struct may grow.

Fencing: a worker registers and is handed an ``incarnation``; a task is handed out under an ``epoch``.
A call under an older one is refused, so a process that slept past its lease can do no harm.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["actor", "learner", "operator"]


class WireMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every message: immutable, keyword-only."""


class Empty(WireMessage, frozen=True, kw_only=True):
    """Nothing to say."""


class TaskProgress(WireMessage, frozen=True, kw_only=True):
    """How far an actor is with a task."""

    task_id: str
    """Of the task."""
    running: tuple[int, ...] = ()
    """Tokens so far of each sample under way."""
    num_queued: int = 0
    """Samples not begun."""
    prompt_tokens: int = 0
    """Of one sample's prompt."""


class Heartbeat(WireMessage, frozen=True, kw_only=True):
    """A worker is alive."""

    task_ids: tuple[str, ...] = ()
    """Tasks that an actor holds: their leases are renewed. A learner sends none."""
    state: str = ""
    """Shown to people: ``generating``, ``loading version 12``."""
    step: int | None = None
    """That the learner works on; None: none, or an actor."""
    progress: tuple[TaskProgress, ...] = ()
    """Of tasks that are not about to be submitted."""
    tokens_per_second: float = 0.0
    """Pace of one sample of an actor; 0 while it is not known."""
    plugins: str = ""
    """What an actor said last of plugins whose files have changed."""


class HeartbeatAnswer(WireMessage, frozen=True, kw_only=True):
    """What a worker has missed."""

    lost: tuple[str, ...] = ()
    """Tasks that belong to another worker by now: drop them."""
    stop: bool = False
    """As in ``Claimed``."""
    give_back: tuple[str, ...] = ()
    """Tasks that another worker will run: return them as they are, with their prefixes."""


class Outcome(WireMessage, frozen=True, kw_only=True):
    """A worker is about to end. Sent before it exits; exit codes are only hints.

    A process that was replaced may end, too: refused, because its successor lives. Incarnation 0: it never got as far
    as to register.
    """

    ok: bool
    """It has done its work; False: it failed."""
    message: str = ""
    """Why it failed; shown to people."""


EvidenceMoment = Literal["running", "told", "failed", "left", "clean"]
"""When a tail was taken: of work that goes on, of work that was told to go, after a bad end, after an end that was
asked for, after a good end."""

EVIDENCE_BYTES_MAX = 1 << 15
"""UTF-8 of one tail."""


class Evidence(WireMessage, frozen=True, kw_only=True):
    """The end of what a pod has written, masked.

    A later tail of the same start takes the place of an earlier one. A good end needs none.
    """

    start: str
    """Names this start of its process."""
    moment: EvidenceMoment
    """When the tail was taken."""
    text: str = ""
    """At most ``EVIDENCE_BYTES_MAX`` of UTF-8."""


class Refusal(WireMessage, frozen=True, kw_only=True):
    """Body of every answer that is not 200."""

    error: str
    """A class name of ``rollout.errors``."""
    message: str
    """Expected, got, and what to do."""
