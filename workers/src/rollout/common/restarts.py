"""When a process that ended may be started again. Pure: times come in, decisions go out.

Back-off doubles from ``backoff_seconds`` to ``backoff_seconds_max``; the first restart after a long
healthy stretch is immediate. More than ``retries_max`` ends within ``window_seconds`` give up, and so
do SAME_ERRORS_MAX ends in a row with one and the same error: a process that cannot live is a failed
run, and its log says why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

HEALTHY_SECONDS = 10.0
"""A process that lived this long before it ended is started again at once."""
SAME_ERRORS_MAX = 3
"""A process that says the same last words so often would say them again."""
PERMANENT_ERRORS = ("no space left",)
"""Words in an error that no restart would change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRules:
    """Bounds on restarting one process. ``retries_max`` counts restarts, not starts."""

    retries_max: int = 10
    window_seconds: float = 600.0
    backoff_seconds: float = 0.25
    backoff_seconds_max: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """One end of a process: when it started and ended (same clock, seconds) and its exit status.

    ``code`` is negative for a signal, as in ``subprocess``; ``error`` is what it said it died of.
    """

    started_at: float
    ended_at: float
    code: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start again at this time."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Do not start again; ``reason`` is for the user."""

    reason: str


def plan_restart(name: str, endings: Sequence[ProcessEnd], rules: RestartRules) -> Restart | GiveUp:
    """What to do after the last of ``endings`` (in order, at least one)."""
    last = endings[-1]
    recent = [end for end in endings if last.ended_at - end.ended_at <= rules.window_seconds]
    if len(recent) > rules.retries_max:
        return GiveUp(
            reason=f"{name} ended {len(recent)} times within {rules.window_seconds:.0f} s "
            f"(last: {describe_exit(last.code)}), more than limits.retries ({rules.retries_max}) allows"
        )
    if any(text in last.error for text in PERMANENT_ERRORS):
        return GiveUp(reason=f"{name} cannot go on")
    shapes = [error_shape(end.error) for end in recent[-SAME_ERRORS_MAX:]]
    if last.error and shapes == [error_shape(last.error)] * SAME_ERRORS_MAX:
        return GiveUp(reason=f"{name} ended {SAME_ERRORS_MAX} times in a row for the same reason")
    return Restart(at=last.ended_at + _backoff(recent, rules))


def error_shape(error: str) -> str:
    """An error without its numbers, by which two ends of one cause are told to be alike."""
    return re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", error)


def _backoff(recent: Sequence[ProcessEnd], rules: RestartRules) -> float:
    streak = 0
    for ending in reversed(recent):
        if ending.ended_at - ending.started_at >= HEALTHY_SECONDS:
            break
        streak += 1
    if streak == 0:
        return 0.0
    return min(rules.backoff_seconds * 2 ** (streak - 1), rules.backoff_seconds_max)


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    names = {-9: "SIGKILL", -15: "SIGTERM", -11: "SIGSEGV", -6: "SIGABRT", -2: "SIGINT"}
    return f"killed by {names.get(code, f'signal {-code}')}"
