"""One bounded wait for tests: a condition that `kubectl wait` cannot say."""

import time
from collections.abc import Callable

SECONDS_MAX = 120.0
POLL_SECONDS = 0.1


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; an AssertionError after two minutes."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX:.0f} s"
        time.sleep(POLL_SECONDS)
