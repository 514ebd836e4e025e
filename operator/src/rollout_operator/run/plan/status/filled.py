"""What presets filled in, as a person reads it in the status. Pure."""

from __future__ import annotations

import json
from typing import Any

from rollout_api.presets import preset_names
from rollout_operator.controller.conditions import Status
from rollout_operator.run.plan.model import Observed

SETTINGS_MAX = 128
VALUE_MAX = 253


def describe_filled(observed: Observed) -> Status | None:
    """The presets and their settings; None for a run that names none. A setting has the same text for as long as its preset lives."""
    if not observed.filled:
        return None
    settings = [
        {"name": one.path, "value": _text(one.value)} for one in observed.filled[:SETTINGS_MAX]
    ]
    return {"presets": preset_names(observed.filled[0].source), "settings": settings}


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:VALUE_MAX] or '""'
