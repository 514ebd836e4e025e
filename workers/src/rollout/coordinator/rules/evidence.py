"""Which tails of the pods' output are worth keeping: of starts that ended badly, or without a word.

Tails of what goes on are held in memory, one a worker, and forgotten at a good end. What is kept is bounded for a
worker and for the run, over all lives of the coordinator; the first failures say more than the last ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollout.errors import CoordinatorError
from rollout.protocol.messages import EVIDENCE_BYTES_MAX, Evidence, EvidenceMoment, Role

HELD_MAX = 1024
"""Workers whose tails are held: 32 MiB at most."""
KEPT_OF_WORKER_MAX, KEPT_OF_RUN_MAX = 4, 64
"""Tails that are kept: 2 MiB a run at most."""
SILENT_SECONDS = 60.0
"""A start that has said nothing for so long is taken for dead once nobody can be asked any more."""
RUNNING_SECONDS_MIN = 1.0
"""A tail of work that goes on is not taken more often."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_START = re.compile(r"[0-9a-f]{8,64}")

Sender = tuple[Role, str]
"""A worker by role and name: one role cannot speak for another's workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The newest tail of a start. ``stuck``: it was told to go while nothing in the run moved."""

    start: str
    moment: EvidenceMoment
    text: str
    at: float
    stuck: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tail that is to be kept."""

    sender: Sender
    tail: Tail


@dataclass(slots=True, kw_only=True)
class EvidenceState:
    """``held`` by sender; ``ended`` is the last start of a sender that is settled; ``kept`` counts by name."""

    held: dict[Sender, Tail] = field(default_factory=dict)
    ended: dict[Sender, str] = field(default_factory=dict)
    kept: Counter[str] = field(default_factory=Counter)
    num_dropped: int = 0


def restore(kept: Mapping[str, int]) -> EvidenceState:
    """The state of a coordinator that starts, by what the ledger has."""
    return EvidenceState(kept=Counter(kept))


def name_of(sender: Sender) -> str:
    """What a sender's evidence is called."""
    return f"{sender[0]}/{sender[1]}"


def take(
    state: EvidenceState, sender: Sender, said: Evidence, now: float, *, stuck: bool = False
) -> list[Kept]:
    """Note a tail; those that are to be kept now. Raises CoordinatorError for what nobody of ours would say.

    ``stuck``: nothing in the run moves.
    """
    _require_sane(sender, said)
    held = state.held.get(sender)
    if state.ended.get(sender) == said.start:
        return []
    known = held is not None or sender in state.ended
    if not known and len(state.held.keys() | state.ended.keys()) >= HELD_MAX:
        raise CoordinatorError(
            f"the evidence of {HELD_MAX} workers is held, which is all there is room for;"
            f" that of {sender[1]} is not taken"
        )
    found: list[Kept] = []
    if held is not None and held.start != said.start:
        found += _keep(state, sender, held)
        held = None
    if held is not None and said.moment == "running" and now - held.at < RUNNING_SECONDS_MIN:
        return found
    tail = _follow(held, said, now, stuck=stuck)
    if said.moment in {"running", "told"}:
        state.held[sender] = tail
        return found
    state.held.pop(sender, None)
    state.ended[sender] = said.start
    return found + (_keep(state, sender, tail) if said.moment == "failed" or tail.stuck else [])


def _follow(held: Tail | None, said: Evidence, now: float, *, stuck: bool) -> Tail:
    """The newest tail of a start, after the one before it: what was told to go stays so."""
    told = held is not None and held.moment == "told"
    return Tail(
        start=said.start,
        moment="told" if told and said.moment == "running" else said.moment,
        text=said.text or (held.text if held is not None else ""),
        at=now,
        stuck=(stuck and said.moment == "told") or (held is not None and held.stuck),
    )


def settle(state: EvidenceState, now: float) -> list[Kept]:
    """What is to be kept of starts that nobody will hear of again: told to go, or silent."""
    found = [
        kept
        for sender, tail in state.held.items()
        if tail.moment == "told" or now - tail.at > SILENT_SECONDS
        for kept in _keep(state, sender, tail)
    ]
    state.held.clear()
    return found


def _keep(state: EvidenceState, sender: Sender, tail: Tail) -> list[Kept]:
    name = name_of(sender)
    room = state.kept[name] < KEPT_OF_WORKER_MAX and state.kept.total() < KEPT_OF_RUN_MAX
    if not room or not tail.text:
        state.num_dropped += 1
        return []
    state.kept[name] += 1
    return [Kept(sender=sender, tail=tail)]


def _require_sane(sender: Sender, said: Evidence) -> None:
    if not _NAME.fullmatch(sender[1]) or not _START.fullmatch(said.start):
        raise CoordinatorError(
            f"expected evidence of a worker and a start, got {sender[1]!r:.80} and {said.start!r:.80}"
        )
    size = len(said.text.encode(errors="replace"))
    if size > EVIDENCE_BYTES_MAX:
        raise CoordinatorError(
            f"evidence of {sender[1]} has {size} bytes, at most {EVIDENCE_BYTES_MAX} are taken: send its end"
        )
