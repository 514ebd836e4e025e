"""Trying again, with a bound: what a network may do to a call, and how long that is borne.

A place raises ``Transient`` for what another try may mend, ``Refused`` for what it will not, ``Absent``
for an object that is not there, ``Unmet`` for a condition that does not hold. ``persist`` turns the first into a StoreError that names the object,
the place, the last reason and the fix once its patience ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rollout.errors import StoreError

_jitter = random.Random()
"""Of our own: the global generator's state is part of a learner's hash chain."""

T = TypeVar("T")


AGAIN_SECONDS_MAX = 30.0
"""The longest pause that a place may ask for."""


class Transient(Exception):  # noqa: N818 - a state, retried and then wrapped
    """This try failed; the next may not, but not before ``again_seconds`` have passed."""

    def __init__(self, message: str, again_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.again_seconds = min(again_seconds, AGAIN_SECONDS_MAX)


class Refused(Exception):  # noqa: N818 - a state, wrapped at once
    """No try will succeed until somebody changes something. ``fix`` says what."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


class Absent(Exception):  # noqa: N818 - a state
    """The object is not there."""


class Unmet(Exception):  # noqa: N818 - a state
    """A conditional change met another object than it expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long one call is tried: ``tries_max`` tries, pauses doubled from first to most, with jitter.

    As it stands, two minutes of failures that come at once: as long as a worker waits for its coordinator.
    A download that stays below ``rate_min`` bytes a second for ``slow_seconds`` is a failed try.
    """

    tries_max: int = 22
    pause_first_seconds: float = 0.2
    pause_max_seconds: float = 10.0
    slow_seconds: float = 30.0
    rate_min: float = 65536.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is being done to which object where; for messages."""

    verb: str
    digest: str
    place: str

    def fail(self, reason: str, fix: str) -> StoreError:
        """The error that ends it."""
        return StoreError(
            f"cannot {self.verb} object {self.digest} in {self.place}: {reason}; {fix}"
        )


def persist(patience: Patience, operation: Operation, attempt: Callable[[], T]) -> T:
    """The result of the first try that succeeds. Raises StoreError; lets Absent and Unmet pass."""
    pause = patience.pause_first_seconds
    for number in range(1, patience.tries_max + 1):
        try:
            return attempt()
        except Refused as error:
            raise operation.fail(str(error), error.fix) from error
        except Transient as error:
            if number == patience.tries_max:
                raise operation.fail(
                    f"{number} tries failed, the last with: {error}",
                    "see whether the place can be reached and is healthy, then resume the run",
                ) from error
            again = error.again_seconds
        time.sleep(max(pause * _jitter.uniform(0.5, 1.0), again * _jitter.uniform(1.0, 1.2)))
        pause = min(pause * 2, patience.pause_max_seconds)
    raise AssertionError("unreachable: the last try returns or raises")


class TransferPace:
    """Notices a transfer that is too slow to be waited for. Made when the transfer starts."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._since = time.monotonic()
        self._size_bytes = 0

    def add(self, size_bytes: int, left: int) -> None:
        """Bytes have come, ``left`` are awaited. Raises Transient when the last while brought too few."""
        self._size_bytes += size_bytes
        elapsed = time.monotonic() - self._since
        if not left or elapsed < self._patience.slow_seconds:
            return
        rate = self._size_bytes / elapsed
        if rate < self._patience.rate_min:
            raise Transient(f"slow: {rate:.0f} bytes a second over {elapsed:.1f} s")
        self._since, self._size_bytes = time.monotonic(), 0
