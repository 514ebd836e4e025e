"""What can still be said when the installed definitions lack a field that the status has. Pure.

The API server refuses such a status as a whole, so what was there before is kept, and only the conditions
that a person reads say what is so.
"""

from __future__ import annotations

from datetime import datetime

from rollout_api.conditions import ConditionType, Reason
from rollout_operator.controller.conditions import Status, no, stamp, yes
from rollout_operator.run.plan.learner_group import find_condition
from rollout_operator.run.plan.model import Observed
from rollout_operator.run.plan.status.conditions import own_part, read_conditions

_SAID = frozenset({ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED})


def plan_outdated(observed: Observed, message: str, now: datetime) -> Status | None:
    """The status that older definitions take; None when it says so already, or of a finished run."""
    if find_condition(observed, "Finished") is not None or _said_already(observed):
        return None
    before = observed.status.model_dump(mode="json", by_alias=True, exclude_unset=True)
    kept = read_conditions(observed.status.conditions, Reason.PENDING)
    aspects = [
        *(one for one in kept if one.type not in _SAID),
        no(ConditionType.READY, Reason.CRD_OUTDATED, message),
        yes(ConditionType.STALLED, Reason.CRD_OUTDATED, message),
    ]
    said = stamp(aspects, observed.status.conditions, observed.generation, now)
    return own_part({**before, "observedGeneration": observed.generation, "conditions": said})


def _said_already(observed: Observed) -> bool:
    """Whatever field is named now: the API server names them in any order."""
    stalled = find_condition(observed, ConditionType.STALLED.value)
    reason = Reason.CRD_OUTDATED.value
    fresh = observed.status.observed_generation == observed.generation
    return fresh and stalled is not None and stalled.reason == reason
