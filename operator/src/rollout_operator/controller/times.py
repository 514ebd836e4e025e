"""Times as the API writes them: RFC 3339 in UTC. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str) -> datetime:
    """RFC 3339, as the API server writes it."""
    return datetime.fromisoformat(text)


def read_time(text: str) -> datetime | None:
    """As ``parse_time``, of what anybody may have written: None for all that is no time with its zone."""
    try:
        found = parse_time(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def render_time(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
