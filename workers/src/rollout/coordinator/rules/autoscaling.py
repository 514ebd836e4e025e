"""How many actors a run wants: as many as make a step's samples in the time that the learner takes for it.

Measured at every commit: the share of the step in which the learner waited for samples, and the share in
which the actors waited for work. What is left are the busy seconds of both sides; their quotient is the
number of actors at which neither would wait. Of the last steps the median counts, and a number that was
chosen stays for as many steps, so that one slow prompt or a starting process changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

STEPS_SEEN = 3
"""Steps that must have been made with the number as it is before it changes."""
GROW_MARGIN, SHRINK_MARGIN = 0.1, 0.25
"""Parts of an actor by which the measured need must differ, so that it does not swing."""
BUSY_SHARE_MIN = 0.02
"""A learner that is busy for less of a step is counted as busy for this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorBounds:
    """Fewest and most actors, and how many there are at the start.

    ``tasks_each``: of a run without a learner, tasks that one actor works on together; 0: the number follows the learner.
    """

    low: int
    high: int
    start: int
    tasks_each: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """``wanted`` actors; ``needs`` are what the last steps made with them would have needed."""

    wanted: int
    needs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """Of one step: how many actors worked, and which shares of it were spent waiting (0 to 1)."""

    num_actors: int
    learner_waits: float
    actors_wait: float


def next_pace(pace: ScaleState, bounds: ActorBounds, shares: StepShares) -> ScaleState:
    """The pace after one more step. A step that others than the wanted actors made says nothing."""
    if shares.num_actors != pace.wanted:
        return pace
    needs = (*pace.needs, needed_actors(shares))[-STEPS_SEEN:]
    if len(needs) < STEPS_SEEN:
        return replace(pace, needs=needs)
    wanted = min(bounds.high, max(bounds.low, _round(median(needs), pace.wanted)))
    return ScaleState(wanted=wanted) if wanted != pace.wanted else replace(pace, needs=needs)


def actors_for_tasks(bounds: ActorBounds, num_left: int) -> int:
    """As many as have a full hand of what is left; where there is no step that could be measured."""
    return min(bounds.high, max(bounds.low, -(-num_left // bounds.tasks_each)))


def needed_actors(shares: StepShares) -> float:
    """The number of actors, not rounded, at which neither side would have waited in that step."""
    busy = max(1.0 - shares.learner_waits, BUSY_SHARE_MIN)
    return shares.num_actors * (1.0 - shares.actors_wait) / busy


def _round(need: float, wanted: int) -> int:
    """The whole number of actors for a need, ``wanted`` itself within the margins."""
    above, below = _ceil(need - GROW_MARGIN), _ceil(need + SHRINK_MARGIN)
    if above > wanted:
        return above
    return min(wanted, below)


def _ceil(value: float) -> int:
    return int(-(-value // 1))
