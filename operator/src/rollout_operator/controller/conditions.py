"""Conditions of any kind: what holds and why, stamped with the time since which it does. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rollout_api.conditions import ConditionType, Reason
from rollout_operator.controller.times import render_time

MESSAGE_LENGTH_MAX = 4096
Status = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionUpdate:
    """A condition before it has times. ``renewed``: it has changed and come back since the last look."""

    type: ConditionType
    holds: bool | None
    reason: Reason
    message: str
    renewed: bool = False


def yes(kind: ConditionType, reason: Reason, message: str) -> ConditionUpdate:
    """The aspect holds."""
    return ConditionUpdate(type=kind, holds=True, reason=reason, message=message)


def no(kind: ConditionType, reason: Reason, message: str) -> ConditionUpdate:
    """The aspect does not hold."""
    return ConditionUpdate(type=kind, holds=False, reason=reason, message=message)


def stamp(
    aspects: Iterable[ConditionUpdate], before: Iterable[Any], generation: int, now: datetime
) -> list[Status]:
    """Conditions with times: the old time where the status has not changed."""
    times = {c.type: (c.status, c.last_transition_time) for c in before}
    stamped = []
    for aspect in aspects:
        status = "Unknown" if aspect.holds is None else str(aspect.holds)
        was = times.get(aspect.type.value)
        same = was is not None and was[0] == status and not aspect.renewed
        stamped.append(
            {
                "type": aspect.type.value,
                "status": status,
                "reason": aspect.reason.value,
                "message": aspect.message[:MESSAGE_LENGTH_MAX],
                "lastTransitionTime": was[1] if was is not None and same else render_time(now),
                "observedGeneration": generation,
            }
        )
    return sorted(stamped, key=lambda condition: condition["type"])
