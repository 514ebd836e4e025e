"""Shows a run while it goes on: a live block on a terminal (``live``), plain lines anywhere else.

Text is made by pure functions of the coordinator's status; a display only decides when to print it.
Everything goes to standard error: standard output belongs to results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TextIO

from rollout.coordinator.status import EvaluationStatus, Status

Mode = Literal["auto", "live", "plain", "none"]
PLAIN_SECONDS_MIN = 2.0
"""A plain display prints at most this often; the first and the last always."""
STILL_FACTOR = 5
"""While the step stays the same it prints so many times less often: only ages change."""
WAIT_SECONDS_SHOWN = 1.0
"""Shorter waits are the normal beat of a synchronous run and not shown."""
BAR_COLUMNS = 36
SAID_PHASES = frozenset({"Evaluating", "Finishing", "Stopping", "Stopped", "Failed"})
"""Phases in which no step is made, and a person should know why."""
HEAD = frozenset({"step", "eta"})
"""Facts that a live block shows beside its bar."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One labelled value of a progress block."""

    label: str
    value: str


def render_facts(status: Status) -> tuple[Fact, ...]:
    """What a person wants to see at a glance, most important first; unknown values are left out."""
    facts = (
        Fact(label="step", value=_step(status)),
        Fact(label="reward", value=_number(status.reward)),
        Fact(label="loss", value=_number(status.loss)),
        Fact(label="tokens/s", value=_rate(status.tokens_per_second)),
        Fact(label="eta", value=_eta(status)),
        Fact(label="bottleneck", value=_bottleneck(status)),
        Fact(label="waits", value=_waits(status)),
        Fact(label="eval", value=_evaluation(status)),
        Fact(label="says", value=_conditions(status)),
    )
    return tuple(fact for fact in facts if fact.value)


def render_line(status: Status) -> str:
    """One line of plain text."""
    return "  ".join(f"{fact.label} {fact.value}" for fact in render_facts(status))


def _step(status: Status) -> str:
    if status.step == 0 and status.phase != "Running":
        return f"0 ({status.phase.lower()})"
    step = str(status.step) if status.steps_max is None else f"{status.step}/{status.steps_max}"
    return f"{step} ({status.phase.lower()})" if status.phase in SAID_PHASES else step


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _rate(value: float | None) -> str:
    if not value:
        return ""
    return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.0f}"


def _eta(status: Status) -> str:
    if status.seconds_per_step is None or status.steps_max is None or status.step == 0:
        return ""
    left = status.steps_max - status.step if status.outcome is None else 0
    return render_seconds(status.seconds_per_step * left) if left > 0 else ""


def render_seconds(seconds: float) -> str:
    """``1h02m``, ``3m07s`` or ``12s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def _waits(status: Status) -> str:
    long = [one for one in status.waiting if one.seconds >= WAIT_SECONDS_SHOWN]
    if not long or status.outcome is not None:
        return ""
    one = max(long, key=lambda waiting: waiting.seconds)
    return f"{one.who} for {one.what} ({one.culprit}, {render_seconds(one.seconds)})"


def _bottleneck(status: Status) -> str:
    if status.bottleneck == "Balanced" or status.outcome is not None:
        return ""
    return status.bottleneck.lower()


def _evaluation(status: Status) -> str:
    """The newest result, then what is being measured."""
    done = [one for one in status.evaluations if one.num_total and one.num_done >= one.num_total]
    going = [one for one in status.evaluations if one.num_done < one.num_total]
    said = [f"{one.name} {headline(one)} at step {one.step}" for one in _newest(done)]
    said += [f"{one.name} {one.num_done}/{one.num_total} at step {one.step}" for one in going[:1]]
    return "; ".join(said)


def _newest(evaluations: Iterable[EvaluationStatus]) -> list[EvaluationStatus]:
    return sorted(evaluations, key=lambda one: (one.lineage, one.step))[-1:]


def headline(evaluation: EvaluationStatus) -> str:
    """The number that stands for an evaluation: its accuracy, else its first metric."""
    metrics = evaluation.metrics
    for name in ("accuracy", *metrics):
        value = metrics.get(name)
        value = value.get("value") if isinstance(value, dict) else value
        if isinstance(value, int | float):
            return f"{value:.3f}"
    return "done"


def _conditions(status: Status) -> str:
    bad = [one for one in status.conditions if not one.status]
    return "; ".join(f"{one.reason}: {one.message}" for one in bad)


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
        self._stream.write(text + "\n")
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
        from rollout.local.live import LiveDisplay

        return LiveDisplay(title)
    return PlainDisplay(target)
