"""What a learner does that stands by: it holds the state of the last committed step, and waits for the seat.

It loads the newest anchor, and takes each step again that is committed after it, from the recorded batch and plan; each must
meet the committed digest and chain value. One that does not is not built upon: the next anchor is waited for. Nothing is
stored, committed or announced here, and no incarnation begins before the seat is ours.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from rollout.learner import hash_chain as chain
from rollout.learner.checkpoint import Progress, restore_anchor
from rollout.learner.context import LearnerContext
from rollout.learner.resume import repeat_step
from rollout.learner.session import Calls
from rollout.learner.standby.seat import LearnerSeat
from rollout.protocol import routes
from rollout.protocol.messages import Cursor, Follow, Followed, LearnerStarted

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""How often the seat is tried."""
ASK_SECONDS = 0.25
"""How often the coordinator is asked what was committed."""
QUIET_SECONDS_MAX = 60.0
"""Ranks hear from the first at least so often."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 tells the others: leave, begin, or do what ``followed`` says; nothing of it: go on waiting."""

    leave: str | None = None
    begins: bool = False
    followed: Followed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is in memory: the state of ``progress``, or what the model's files gave (``fresh``), or nothing of use.

    ``lineage`` and ``step`` are where it stands in the run.
    """

    progress: Progress | None = None
    fresh: bool = True
    lineage: int = 0
    step: int = 0

    @property
    def asks(self) -> Follow:
        """What to ask for."""
        useful = self.fresh or self.progress is not None
        return Follow(lineage=self.lineage, step=self.step, replays=useful)

    def serves(self, started: LearnerStarted) -> bool:
        """Whether an incarnation may go on from what is held, with the records after it."""
        held, anchor = self.progress, started.anchor
        if held is None or held.lineage != started.lineage:
            return False
        chains = {record.step: record.chain for record in started.replay}
        if anchor is not None:
            chains[anchor.step] = anchor.chain
        return chains.get(held.step) == held.chain

    def can_begin(self, started: LearnerStarted) -> bool:
        """Whether there is any way to begin in this process: a state that was left half way needs an anchor."""
        return self.fresh or started.anchor is not None or self.serves(started)


def try_seat(calls: Calls | None, seat: LearnerSeat | None) -> News:
    """Whether to begin at once, where this is the only learner or the seat is free; to leave; or, neither, to stand by.

    On rank 0. Raises CoordinatorError.
    """
    if seat is None:
        return News(begins=True)
    if not seat.take():
        return News()
    assert calls is not None, "rank 0 has the coordinator's client"
    return _begin_unless_over(calls.call(routes.FOLLOW, Follow(lineage=0, step=0, replays=False)))


def _begin_unless_over(told: Followed) -> News:
    return News(begins=True) if told.stop is None else News(leave=told.stop)


def stand_by(
    parts: LearnerContext,
    calls: Calls | None,
    seat: LearnerSeat | None,
    told_seconds: Callable[[], float | None],
) -> Held | None:
    """Keep up with the run until the seat is ours: what is held then; None: nobody is needed any more.

    Call on every rank; ``calls`` and ``seat`` are rank 0's. Raises CoordinatorError, StoreError, and RunFailed for an anchor
    of another model.
    """
    held = Held()
    log.info("standing by")
    while True:
        wait = partial(_wait_for_news, calls, seat, held.asks, told_seconds)
        news = parts.parallel.on_main(wait, News)
        if news.leave is not None:
            log.info("standby leaves reason=%s", news.leave)
            return None
        if news.begins:
            log.warning("standby takes the learner's place step=%d", held.step)
            return held
        if news.followed is not None:
            held = _follow(parts, held, news.followed)


def _wait_for_news(
    calls: Calls | None,
    seat: LearnerSeat | None,
    ask: Follow,
    told_seconds: Callable[[], float | None],
) -> News:
    """On rank 0."""
    assert calls is not None and seat is not None, (
        "rank 0 has the coordinator's client and the seat"
    )
    until = time.monotonic() + QUIET_SECONDS_MAX
    ask_at = 0.0
    while (now := time.monotonic()) < until:
        if told_seconds() is not None:
            return News(leave="told to go")
        taken = seat.take()
        if taken or now >= ask_at:
            told = calls.call(routes.FOLLOW, ask)
            ask_at = time.monotonic() + ASK_SECONDS
            if taken or told.stop is not None:
                return _begin_unless_over(told)
            if told.anchor is not None or told.record is not None:
                return News(followed=told)
        time.sleep(LOOK_SECONDS)
    return News()


def _follow(parts: LearnerContext, held: Held, told: Followed) -> Held:
    """What is held after an anchor was loaded, or a step taken again."""
    if told.anchor is not None:
        progress = restore_anchor(told.anchor, parts.store, parts.trainer)
        progress = replace(progress, lineage=told.lineage)
        log.info("standby loaded anchor=%s", told.anchor.name)
        return _held(progress)
    assert told.record is not None and told.batch is not None, "a record comes with its batch"
    before = held.progress or _first(parts, told)
    again = repeat_step(parts, before, told.batch, told.record)
    if again.equal:
        return _held(again.progress)
    log.warning(
        "standby differs step=%d expected=%s got=%s: waiting for an anchor",
        told.record.step,
        told.record.chain,
        again.progress.chain,
    )
    return Held(fresh=False, lineage=told.lineage, step=told.record.step)


def _held(progress: Progress) -> Held:
    return Held(progress=progress, fresh=False, lineage=progress.lineage, step=progress.step)


def _first(parts: LearnerContext, told: Followed) -> Progress:
    """Where a run begins, as its first learner announced it."""
    assert told.initial is not None, "steps are committed after the first version only"
    return Progress(
        lineage=told.lineage,
        step=0,
        chain=chain.first_link(parts.trainer.settings.spec_digest, told.initial.digest),
        version=told.initial,
        cursor=Cursor(next_ordinal=0),
    )
