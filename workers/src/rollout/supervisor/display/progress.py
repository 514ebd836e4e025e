"""Shows a run while it goes on: a live block on a terminal (``display.live``), plain lines anywhere else.

Text is made in ``facts``; a display only decides when to print it.
Everything goes to standard error: standard output belongs to results.
"""

from __future__ import annotations

import sys
import time
from typing import Literal, Protocol, TextIO

from rollout.protocol.status import Status
from rollout.supervisor.display.facts import render_line
from rollout.supervisor.display.live import LiveDisplay
from rollout_api.visible import visible

Mode = Literal["auto", "live", "plain", "none"]
PLAIN_SECONDS_MIN = 2.0
"""A plain display prints at most this often; the first and the last always."""
STILL_FACTOR = 5
"""While the step stays the same it prints so many times less often: only ages change."""


class Display(Protocol):
    """Where progress goes."""

    def show(self, status: Status) -> None:
        """Show the newest status; called at most twice a second."""
        ...

    def note(self, text: str) -> None:
        """Say one thing to a person, at once."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; idempotent."""
        ...


class SilentDisplay:
    """Shows nothing but notes' absence: for programs."""

    def show(self, status: Status) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainDisplay:
    """One line now and then, for logs and pipes."""

    def __init__(self, stream: TextIO, seconds_min: float = PLAIN_SECONDS_MIN) -> None:
        self._stream = stream
        self._seconds_min = seconds_min
        self._shown_at = float("-inf")
        self._step = -1
        self._line = ""
        self._pending = ""

    def show(self, status: Status) -> None:
        """Print when something changed and the last line is old enough."""
        line = render_line(status)
        if line == self._line:
            return
        self._pending = line
        still = status.step == self._step
        if time.monotonic() - self._shown_at >= self._seconds_min * (STILL_FACTOR if still else 1):
            self._step = status.step
            self._flush()

    def note(self, text: str) -> None:
        """Print at once."""
        self._stream.write(visible(text) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Print what was held back."""
        if self._pending:
            self._flush()

    def _flush(self) -> None:
        self._line, self._pending = self._pending, ""
        self._shown_at = time.monotonic()
        self.note(self._line)


def make_display(mode: Mode, title: str, stream: TextIO | None = None) -> Display:
    """The display for ``mode``; ``auto`` is live on a terminal and plain elsewhere."""
    target = sys.stderr if stream is None else stream
    if mode == "none":
        return SilentDisplay()
    if mode == "live" or (mode == "auto" and target.isatty()):
        return LiveDisplay(title)
    return PlainDisplay(target)
