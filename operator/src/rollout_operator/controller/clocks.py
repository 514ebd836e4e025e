"""The time and the chance that a process goes by: handed to its parts, so that a simulation may give others."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def read_now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """``now`` is written into objects; ``monotonic`` only goes on, in seconds; ``noise``, 0 to 1, spreads pauses."""

    now: Callable[[], datetime] = read_now
    monotonic: Callable[[], float] = time.monotonic
    noise: Callable[[], float] = random.random


CLOCKS = Clocks()
"""Those of the machine."""
