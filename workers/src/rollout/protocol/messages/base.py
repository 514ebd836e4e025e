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
    """How far an actor is with a task: tokens so far of each sample under way, samples not begun."""

    task_id: str
    running: tuple[int, ...] = ()
    num_queued: int = 0
    prompt_tokens: int = 0


class Heartbeat(WireMessage, frozen=True, kw_only=True):
    """A worker is alive. ``state`` is shown to people: ``generating``, ``loading version 12``.

    For an actor, ``task_ids`` are the tasks it holds: their leases are renewed. A learner sends none.
    ``progress`` is of those that are not about to be submitted; ``tokens_per_second`` is the pace of one
    of its samples, 0 while it is not known.
    """

    task_ids: tuple[str, ...] = ()
    state: str = ""
    step: int | None = None
    progress: tuple[TaskProgress, ...] = ()
    tokens_per_second: float = 0.0


class HeartbeatAnswer(WireMessage, frozen=True, kw_only=True):
    """Tasks in ``lost`` belong to somebody else by now: drop them. ``stop`` as in ``Claimed``.

    Tasks in ``give_back`` are wanted elsewhere: return them as they are, with their prefixes.
    """

    lost: tuple[str, ...] = ()
    stop: bool = False
    give_back: tuple[str, ...] = ()


class Outcome(WireMessage, frozen=True, kw_only=True):
    """A worker is about to end. Sent before it exits; exit codes are only hints.

    A process that was replaced may end, too: refused, because its successor lives. Incarnation 0: it never got
    as far as to register.
    """

    ok: bool
    message: str = ""


EvidenceMoment = Literal["running", "told", "failed", "left", "clean"]
"""When a tail was taken: of work that goes on, of work that was told to go, after a bad end, after an end that was
asked for, after a good end."""

EVIDENCE_BYTES_MAX = 1 << 15
"""UTF-8 of one tail."""


class Evidence(WireMessage, frozen=True, kw_only=True):
    """The end of what a pod has written, masked. ``start`` names this start of its process.

    A later tail of the same start takes the place of an earlier one. A good end needs none.
    """

    start: str
    moment: EvidenceMoment
    text: str = ""


class Refusal(WireMessage, frozen=True, kw_only=True):
    """Body of every answer that is not 200. ``error`` is a class name of ``rollout.errors``."""

    error: str
    message: str
