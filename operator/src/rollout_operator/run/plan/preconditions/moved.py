"""A stored spec that was written for an earlier schema: what the API server has dropped of it, the record still says. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rollout_api.conditions import Reason
from rollout_api.fields.moved import find_unsaid
from rollout_operator.run.plan.model import Blocked


def check_moved(order: str, spec: Mapping[str, Any]) -> Blocked | None:
    """``order`` is what the attempt before was told (JSON); raises ValueError when it is none."""
    before = json.loads(order)
    unsaid = list(find_unsaid(before["spec"], spec, ("spec",)))
    if not unsaid:
        return None
    words = "; ".join(unsaid)
    message = (
        f"the spec was written for an earlier version, and what moved is lost from it: {words}"
    )
    return Blocked(reason=Reason.INVALID_SPEC, message=message)
