"""One bounded wait for tests, for what `kubectl wait` cannot say: who waits names what for.

Promises about seconds are made for a machine with time to spare; on a busy one they take as much longer. While something
is waited for, ``Pace`` does a little work again and again: as many times longer as that takes than it computes, as many
times longer may the promise take. On an idle machine that is once.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

SECONDS_MAX = 180.0
"""Of a wait in the quick tier, on a machine with both cores busy."""
POLL_SECONDS = 0.1
WORK_SECONDS, PAUSE_SECONDS = 0.002, 0.05
"""What ``Pace`` takes of a core: a twenty-fifth."""


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


@dataclass(slots=True)
class Pace:
    """Judges the machine from ``with`` on."""

    took_seconds: float = 0.0
    computed_seconds: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._measure()
        self._thread = threading.Thread(target=self._go_on, daemon=True, name="pace")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def stretch(self, seconds: float) -> float:
        """What such a promise may take here and now; never less than itself."""
        return seconds * max(1.0, self.took_seconds / self.computed_seconds)

    def _go_on(self) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            self._measure()

    def _measure(self) -> None:
        began, computed = time.monotonic(), time.thread_time()
        while (done := time.thread_time() - computed) < WORK_SECONDS:
            pass
        self.took_seconds += time.monotonic() - began
        self.computed_seconds += done
