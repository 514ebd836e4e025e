"""A run's events as CloudEvents 1.0 in JSON (structured mode). Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from rollout.run_events import RunEvent

TYPE_PREFIX = "dev.rollout.run."
CONTENT_TYPE = "application/cloudevents+json"
TEXT_CHARACTERS_MAX = 2000
"""Of one text in an event: services take 256 KiB in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Whose events they are."""

    uid: str
    name: str
    namespace: str = ""

    @property
    def subject(self) -> str:
        """The run as people call it."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def write_event(source: EventSource, event: RunEvent, now: datetime) -> str:
    """One line. ``now`` stays the event's time: the line is written once and then sent as it is, however often."""
    content = {
        "specversion": "1.0",
        "id": f"{source.uid}/{event.ident}",
        "source": f"//rollout.dev/runs/{quote(source.uid, safe='')}",
        "type": f"{TYPE_PREFIX}{event.kind}",
        "subject": source.subject,
        "time": now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": {"run": source.name, "uid": source.uid, **_cut(dict(event.data))},
    }
    return json.dumps(content, allow_nan=False)


def _cut(value: Any) -> Any:
    """Texts at their longest, and numbers that JSON has."""
    if isinstance(value, str):
        return value[:TEXT_CHARACTERS_MAX]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124 - NaN
        return None
    if isinstance(value, dict):
        return {name: _cut(inner) for name, inner in value.items()}
    return value
