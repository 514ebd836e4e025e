"""How a call is refused: the field, its value, why, and what to do instead."""

from __future__ import annotations

from rollout.errors import RolloutError

WORDS_MAX = 1000
"""Characters of a refusal: what a caller sent is said to it in part only."""


class CallRefused(RolloutError):  # noqa: N818 - an answer, not a fault
    """The caller's mistake, or something that is not offered. ``status`` is HTTP's; ``retry_after`` in seconds, of a 429.

    Clients try 408, 409, 429 and 5xx again by themselves: a refusal that would be the same next time is none of them.
    """

    def __init__(self, message: str, status: int = 400, retry_after: float = 1.0) -> None:
        super().__init__(
            message if len(message) <= WORDS_MAX else f"{message[:WORDS_MAX]} (cut here)"
        )
        self.status = status
        self.retry_after = retry_after


class QuotaSpent(CallRefused):
    """A key has had all that it may have: no waiting helps, so clients do not try again by themselves."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 403)


class RateReached(CallRefused):
    """A key's rates, or its calls at a time, let nothing in now: 429, and clients come again after ``retry_after`` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, 429, retry_after)


def not_offered(what: str, instead: str) -> CallRefused:
    """Something that clients may ask for elsewhere."""
    return CallRefused(f"{what} is not offered by this service; {instead}", 422)


def unknown(kind: str, name: str) -> CallRefused:
    """An id that nobody has, or that belongs to another key: the two are told apart to nobody."""
    return CallRefused(f"there is no {kind} {name[:200]!r}; create it first, with this key", 404)
