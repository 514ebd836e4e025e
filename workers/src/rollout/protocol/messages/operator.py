"""What the operator, or whoever supervises a local run, says to the coordinator."""

from __future__ import annotations

from typing import Any

import msgspec

from rollout.protocol.messages.base import WireMessage


class Stop(WireMessage, frozen=True, kw_only=True):
    """End the run early; workers save what they have. The run can be resumed.

    ``attempt``: the run attempt that is meant; another one's coordinator refuses (StaleSettings). None: whichever hears it.
    """

    reason: str
    attempt: int | None = None


class Settings(WireMessage, frozen=True, kw_only=True):
    """Live settings of one generation of the run's object; ``live`` is a ``rollout_api.live.LiveSettings``.

    An older generation than the last is refused (StaleSettings).
    """

    generation: int
    live: dict[str, Any] = msgspec.field(default_factory=dict)


class SettingsTaken(WireMessage, frozen=True, kw_only=True):
    """``deferred`` says what takes effect with the next run attempt only, and why."""

    generation: int
    deferred: tuple[str, ...] = ()
