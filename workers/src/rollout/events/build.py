"""From the API's ``tracking`` to what sends a run's events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollout.errors import SpecError
from rollout.events.cloud_events import EventSource
from rollout.events.senders import require_client
from rollout.events.tracker import EventTracker
from rollout_api.fields.event_targets import FORMS, EventTarget, parse_event_target
from rollout_api.v1alpha1.operations import Tracking


def find_targets(tracking: Sequence[Tracking]) -> list[tuple[str, EventTarget]]:
    """The targets of events, each with its field. Raises SpecError for what is none."""
    found: list[tuple[str, EventTarget]] = []
    for index, item in enumerate(tracking):
        if item.events is None:
            continue
        field = f"spec.tracking[{index}].events.uri"
        target = parse_event_target(item.events.uri)
        if target is None:
            raise SpecError(
                f"{field}: {item.events.uri!r:.200} names no queue or topic; write {FORMS}"
            )
        found.append((field, target))
    return found


def open_event_trackers(
    tracking: Sequence[Tracking], run_dir: Path, source: EventSource
) -> tuple[EventTracker, ...]:
    """Open what sends the events of ``source``; each goes on where it stopped.

    Raises SpecError for what is no target, or has no client in this installation, and StoreError for a folder that cannot be written.
    """
    targets = find_targets(tracking)
    for field, target in targets:
        require_client(target, field)
    folder = run_dir / "tracking" / "events"
    return tuple(EventTracker(folder, target, source) for _, target in targets)
