"""Which children an attempt shall have in a phase, and when to look again. Pure."""

from __future__ import annotations

from datetime import datetime

from rollout_operator.cache.children import Child
from rollout_operator.run.plan.model import Desired, Observed
from rollout_operator.run.plan.phases import Phase, not_wanted, plan_deletions


def plan_desired(observed: Observed, record: Child | None, phase: Phase, attempt: int) -> Desired:
    """The attempt's children as its phase has them; without a record it is still to be made."""
    return Desired(
        attempt=attempt,
        record=record.name if record is not None else None,
        live=phase.live,
        without=not_wanted(observed),
        deletions=tuple(plan_deletions(observed, phase.live, attempt)),
    )


def until(due: datetime | None, now: datetime) -> float | None:
    """Seconds until then, 0 where it is past; None without a time."""
    return max(0.0, (due - now).total_seconds()) if due is not None else None


def earliest(*times: datetime | None) -> datetime | None:
    """The first of several times, of which each may be missing."""
    return min((time for time in times if time is not None), default=None)
