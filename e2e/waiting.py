"""One bounded wait for tests, for what `kubectl wait` cannot say: who waits names what for."""

import time
from collections.abc import Callable
from typing import Any

SECONDS_MAX = 180.0
"""Of a wait in the quick tier, on a machine with both cores busy."""
POLL_SECONDS = 0.1


def wait_until(
    ask: Callable[[], Any],
    what: str,
    seconds: float = SECONDS_MAX,
    *,
    every: float = POLL_SECONDS,
    hopeless: Callable[[], str] = str,
) -> Any:
    """The first true answer of `ask`.

    `hopeless` says why none will come, in words; empty while there is hope.

    Raises:
        AssertionError: there is no hope, or the time is over; with `what` and the last answer.
    """
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        why = hopeless()
        assert not why, f"{what}: it will not come: {why}"
        assert time.monotonic() < deadline, (
            f"{what}: not within {seconds:g} s; last answer: {answer!r}"
        )
        time.sleep(every)
    return answer
