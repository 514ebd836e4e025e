"""A thread that tells somebody else's service what is to be told, and tries again for as long as it fails.

Nothing waits for it. What is to be told lies in a file behind a cursor, which ``tell_next`` moves once it was taken: it is
told in order, at least once, and a kill loses none of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

CLOSE_SECONDS = 5.0
"""How long the end of a run waits for what is still to be told."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 60.0
"""Between tries that fail: twice as long each time."""
FAILURES_TOLD = 3
"""Tries in a row that fail until the run's status says so."""
CLOSE_FAILURES_MAX = 3
WORDS_MAX = 500
"""Of what a service says of a failure."""

log = logging.getLogger(__name__)


class Teller:
    """Calls ``tell_next`` while it says that there may be more, then waits to be woken. ``leave`` is called once, at its end.

    ``waiting`` says where what is not told yet lies. ``start``, and ``close`` when done.
    """

    def __init__(
        self,
        title: str,
        tell_next: Callable[[], bool],
        waiting: Callable[[], str],
        leave: Callable[[], None],
    ) -> None:
        self._title, self._tell_next, self._waiting, self._leave = title, tell_next, waiting, leave
        self._woken, self._closed = threading.Event(), threading.Event()
        self._failures, self._why = 0, ""
        self.thread = threading.Thread(target=self._tell_all, name=title, daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self.thread.start()

    def wake(self) -> None:
        """There is more to tell."""
        self._woken.set()

    @property
    def trouble(self) -> str:
        """Why nothing is taken, once telling has failed time and again; empty as soon as something is."""
        failures, why = self._failures, self._why
        return f"{why}; {self._waiting()}" if failures >= FAILURES_TOLD else ""

    def close(self) -> None:
        """Tell what is left, for so long as the end of a run may wait; idempotent."""
        self._closed.set()
        self._woken.set()
        self.thread.join(CLOSE_SECONDS)
        if self.thread.is_alive() or self._failures:
            log.warning(
                "%s was not told everything (%s): %s", self._title, self._why, self._waiting()
            )

    def _tell_all(self) -> None:
        try:
            while not self._is_over():
                self._woken.clear()
                try:
                    moved = self._tell_next()
                except Exception as error:  # noqa: BLE001 - it is somebody else's service, and must be seen: ``trouble`` says it
                    self._note(error)
                    self._closed.wait(_pause(self._failures))
                    continue
                self._recover()
                if moved:
                    continue
                if self._closed.is_set():
                    return
                self._woken.wait()
        finally:
            self._leave()

    def _is_over(self) -> bool:
        return self._closed.is_set() and self._failures >= CLOSE_FAILURES_MAX

    def _note(self, error: Exception) -> None:
        self._why = f"{type(error).__name__}: {error}"[:WORDS_MAX]
        self._failures += 1
        log.warning("%s: try %d: %s", self._title, self._failures, self._why)

    def _recover(self) -> None:
        if self._failures:
            log.info("%s takes what it is told again", self._title)
        self._failures, self._why = 0, ""


def _pause(failures: int) -> float:
    return min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2 ** min(failures - 1, 10))
