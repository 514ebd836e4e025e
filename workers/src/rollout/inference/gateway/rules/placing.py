"""Who of those that wait goes to which engine now: where most of its prompt is computed, for as long as that is worth a wait.

A request's home is the engine that has most of its prompt. Where that is full and another has room, the request lets the place go to
those behind it that lose nothing there. If there are none, the place stays free for as many seconds as the prompt would take longer on that
engine, counted from the first place that was let go, and then is taken: to rent for as long as buying costs is never more than twice the best
(Karlin et al., 1988). On an engine that is full that counts ``COMPANY_WEIGHT`` times more, since who is answered there is held up by it, too. After ``OVERTAKEN_SECONDS_MAX`` a request takes what there is, whoever is behind it. So full engines keep their
conversations, no place is free for longer than ``PATIENCE_SECONDS_MAX`` while any wait, and nobody starves. Who is asked first is the fair queue's to say.
Of engines with room the one is taken where a request begins soonest; ties go to fewer requests, then to the engine that a conversation's
name draws, so that one too short for a block comes back to where it was. Pure: the time is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from rollout.inference.gateway.rules.queueing import FairQueue, Queued
from rollout.inference.gateway.rules.routing import BLOCK_TOKENS, EngineLoad, draw_engine

CANDIDATES_MAX = 64
"""Requests that are asked whether they take a place."""
LOSS_SECONDS_MIN = 0.01
"""To compute so much again is not worth a wait."""
COMPANY_WEIGHT = 3.0
"""What those who are answered by an engine with all its places taken lose by a prompt computed again there, to what its own request loses."""
PATIENCE_SECONDS_MAX = 10.0
OVERTAKEN_SECONDS_MAX = 20.0


@dataclass(slots=True, kw_only=True, eq=False)
class Seeker:
    """One that wants a place. ``blocks`` of its prompt; ``session``: the same in all requests of a conversation.

    ``passed_at``: when it first let a place go; ``looked``: of engines the tokens that each would compute, and after which of its changes.
    """

    prompt_tokens: int
    blocks: Sequence[bytes]
    session: bytes
    passed_at: float = float("inf")
    looked: dict[EngineLoad, tuple[int, int]] = field(default_factory=dict)

    def uncached(self, engine: EngineLoad) -> int:
        """Prompt tokens that this engine would compute."""
        changes, tokens = self.looked.get(engine, (-1, 0))
        if changes != engine.changes:
            matched = engine.count_matched(self.blocks) * BLOCK_TOKENS
            tokens = max(0, self.prompt_tokens - matched)
            self.looked[engine] = engine.changes, tokens
        return tokens


class SeeksPlace(Protocol):
    """What waits in a queue."""

    @property
    def seeker(self) -> Seeker:
        """What it seeks."""
        ...


T = TypeVar("T", bound=SeeksPlace)


class OfferedPlace(NamedTuple):
    """Where a request would go now. From ``due_at`` on it goes, from ``ripe_at`` on where nobody else does."""

    engine: EngineLoad
    ripe_at: float
    due_at: float


class PlacedRequest(NamedTuple, Generic[T]):
    """A request that goes, and where to."""

    queued: Queued[T]
    engine: EngineLoad


def place_next(
    engines: Sequence[EngineLoad], queue: FairQueue[T], now: float
) -> tuple[PlacedRequest[T] | None, float]:
    """The next of a queue that takes a place, not yet taken out of it; or when to ask again though nothing has ended."""
    again_at, ripe = float("inf"), None
    room, full = _part(engines)
    for queued in queue.candidates(CANDIDATES_MAX) if room else ():
        place = _offer(room, full, queued.item.seeker, now)
        if place.due_at <= now:
            return PlacedRequest(queued, place.engine), now
        if ripe is None and place.ripe_at <= now:
            ripe = PlacedRequest(queued, place.engine)
        again_at = min(again_at, place.ripe_at)
    return ripe, again_at


def find_place(engines: Sequence[EngineLoad], seeker: Seeker, now: float) -> OfferedPlace | None:
    """The best engine with room, and how sure that is; None where none has. Notes when a place was first let go."""
    room, full = _part(engines)
    return _offer(room, full, seeker, now) if room else None


def _part(engines: Sequence[EngineLoad]) -> tuple[list[EngineLoad], list[EngineLoad]]:
    """Those with room, and those that are full; the others take nothing now."""
    room = [one for one in engines if one.has_room]
    return room, [one for one in engines if one.ready and one.requests >= one.slots]


def _offer(
    room: Sequence[EngineLoad], full: Sequence[EngineLoad], seeker: Seeker, now: float
) -> OfferedPlace:
    best = room[0] if len(room) == 1 else min(room, key=lambda one: _rank(one, seeker))
    elsewhere = min(map(seeker.uncached, full), default=seeker.prompt_tokens)
    more = seeker.uncached(best) - elsewhere
    company = COMPANY_WEIGHT * best.requests / max(best.slots, 1)
    loss = (1 + company) * more / best.rate
    if loss <= LOSS_SECONDS_MIN:
        return OfferedPlace(best, now, now)
    seeker.passed_at = min(seeker.passed_at, now)
    since = seeker.passed_at
    return OfferedPlace(
        best, since + min(loss, PATIENCE_SECONDS_MAX), since + OVERTAKEN_SECONDS_MAX
    )


def _rank(engine: EngineLoad, seeker: Seeker) -> tuple[float, int, bytes]:
    seconds = engine.seconds + seeker.uncached(engine) / engine.rate
    return seconds, engine.requests, draw_engine(engine, seeker.session)
