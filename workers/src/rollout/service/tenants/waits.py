"""What a call waits for, in the three words that clients know, with a reason that they show to people. Pure.

``active``: it is computed, or calls of its own key are, or it is next. ``paused_capacity``: calls of other keys have their turn, or the model's order
waits for a call that has not come. ``paused_rate_limit``: it waits for one that its key's rates did not let in yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rollout.service.refusals import CallRefused, RateReached


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWait:
    """``reason`` is empty where clients need none."""

    state: Literal["active", "paused_capacity", "paused_rate_limit"] = "active"
    reason: str = ""


def tell_turn(owner: str, current: str | None, waiting: Iterable[str]) -> QueueWait:
    """What a call of ``owner`` waits for that may be made; ``current`` is whose is made now, ``waiting`` of whom calls wait."""
    others = set(waiting) - {owner}
    if not others or current == owner:
        return QueueWait()
    keys = "another key" if len(others) == 1 else f"{len(others)} other keys"
    return QueueWait(state="paused_capacity", reason=f"calls of {keys} have their turn")


def tell_missing(seq: int, held: tuple[int, CallRefused] | None) -> QueueWait:
    """What calls behind call ``seq`` wait for; ``held``: the call that was last told to come again, and why."""
    if held is None or held[0] != seq:
        return QueueWait(state="paused_capacity", reason=f"call {seq} of this model has not come")
    state = "paused_rate_limit" if isinstance(held[1], RateReached) else "paused_capacity"
    return QueueWait(state=state, reason=f"call {seq} of this model is to come again: {held[1]}")
