"""Pauses between tries that fail: doubling from 0.2 s up to a bound, spread by chance. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rollout_operator.errors import Unavailable

PAUSE_SECONDS_MIN = 0.2
ASKED_SECONDS_MAX = 300.0


def pause_seconds(num_failures: int, seconds_max: float, noise: float) -> float:
    """The pause after some failures; ``noise`` from 0 to 1 takes up to half of it away."""
    full = min(seconds_max, PAUSE_SECONDS_MIN * 2 ** min(num_failures, 20))
    return full * (1 - noise / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses without an end, each time from the shortest one."""

    seconds_max: float
    noise: Callable[[], float] = random.random

    def __iter__(self) -> Iterator[float]:
        """Start anew."""
        num_failures = 0
        while True:
            yield pause_seconds(num_failures, self.seconds_max, self.noise())
            num_failures += 1


def asked_seconds(error: Exception) -> float:
    """How long the API server asks us to wait."""
    asked = error.retry_after_seconds if isinstance(error, Unavailable) else None
    return min(asked or 0.0, ASKED_SECONDS_MAX)
