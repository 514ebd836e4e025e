"""What trackers, and who waits for events, are told of a run: its end, and what has come to be true of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run has ended."""

    kind: str
    """``Succeeded``, ``Failed`` or ``Stopped`` (it may go on)."""
    reason: str
    """The reason of the run's condition, in CamelCase."""
    message: str
    """A sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that has come to be true of a run."""

    ident: str
    """Within the run; the same however often the event is found."""
    kind: str
    """``started``, ``snapshot``, ``best``, ``gate``, ``stuck``, or ``RunEnd.kind`` in lower case."""
    data: Mapping[str, Any]
    """What the event tells, JSON values only."""
