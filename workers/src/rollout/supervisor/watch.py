"""What the supervisor concludes from the coordinator's status. Pure: no clock, no processes.

Exit codes: 0 succeeded, 1 failed, 2 bad input, 3 a gate refused, 4 something outside could not be
reached, 130 interrupted with its state saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout.protocol.status import RunOutcome, Status, find_waited_for, rank_waits

EXIT_OK, EXIT_FAILED, EXIT_INPUT, EXIT_GATE, EXIT_OUTSIDE, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130

INPUT_REASONS = frozenset({"SpecError", "ModelNotFound", "DataError", "DataNotFound"})
GATE_REASONS = frozenset({"GateRefused", "GateFailed"})
OUTSIDE_REASONS = frozenset({"CoordinatorError", "HubUnreachable", "Unreachable"})
WORKING_PHASES = frozenset({"Starting", "Running"})
"""Phases in which every worker is needed, whatever it said when it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a supervised run ended, in the words the user reads."""

    exit_code: int
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Seconds after which the supervisor acts (``spec.limits``). None is no bound."""

    pre_running_seconds: float
    active_seconds: float | None
    no_progress_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMove:
    """The last time something moved: ``mark`` is what was seen then."""

    mark: tuple[int, ...] = ()
    at: float = 0.0


def conclude(outcome: RunOutcome, *, interrupted: bool) -> Ended:
    """The end of a run whose coordinator has said how it ended."""
    if outcome.kind == "Succeeded":
        return Ended(exit_code=EXIT_OK, reason=outcome.reason, message=outcome.message)
    if outcome.kind == "Stopped":
        code = EXIT_INTERRUPTED if interrupted else EXIT_FAILED
        return Ended(exit_code=code, reason=outcome.reason, message=outcome.message)
    return Ended(
        exit_code=_failure_code(outcome.reason), reason=outcome.reason, message=outcome.message
    )


def _failure_code(reason: str) -> int:
    for reasons, code in (
        (INPUT_REASONS, EXIT_INPUT),
        (GATE_REASONS, EXIT_GATE),
        (OUTSIDE_REASONS, EXIT_OUTSIDE),
    ):
        if reason in reasons:
            return code
    return EXIT_FAILED


def track_progress(last: LastMove, status: Status, now: float) -> LastMove:
    """``last``, or a new mark when a step, a sample or an evaluation has moved since."""
    done = sum(one.num_done for one in status.evaluations)
    mark = (status.lineage, status.step, sum(status.dispositions.values()), done, status.position)
    return last if mark == last.mark else LastMove(mark=mark, at=now)


def check_bounds(
    status: Status | None, *, started_at: float, now: float, bounds: Bounds
) -> Ended | None:
    """The run's end by a bound of ``limits``, or None."""
    lasted = now - started_at
    if bounds.active_seconds is not None and lasted > bounds.active_seconds:
        return Ended(
            exit_code=EXIT_FAILED,
            reason="ActiveSecondsExceeded",
            message=f"the run lasted longer than limits.activeSeconds ({bounds.active_seconds:.0f})",
        )
    started = status is not None and (
        status.step > 0
        or any(status.dispositions.values())
        or any(one.num_done for one in status.evaluations)
    )
    if not started and lasted > bounds.pre_running_seconds:
        return Ended(
            exit_code=EXIT_FAILED,
            reason="PreRunningSecondsExceeded",
            message=f"no first step within limits.preRunningSeconds ({bounds.pre_running_seconds:.0f})"
            + describe_waiting(status),
        )
    return None


def find_stuck(status: Status, progress: LastMove, now: float, bounds: Bounds) -> str | None:
    """The worker to restart because nothing moved for too long, or None."""
    if now - progress.at <= bounds.no_progress_seconds:
        return None
    waited_for = find_waited_for(status)
    if waited_for is not None:
        return waited_for.worker
    working = [worker for worker in status.workers if worker.outcome is None]
    silent = sorted(working, key=lambda worker: -worker.heartbeat_age_seconds)
    return silent[0].worker if silent else None


def reason_of(role: str) -> str:
    """How a run ends whose process of this role cannot live, in one word."""
    return f"{role.capitalize()}Failed"


def has_left(status: Status | None, name: str) -> bool:
    """Whether this worker ended as it should, and the run has no more work for it."""
    if status is None or status.phase in WORKING_PHASES:
        return False
    outcomes = [worker.outcome for worker in status.workers if worker.worker == name]
    return bool(outcomes) and outcomes[0] == "succeeded"


def describe_waiting(status: Status | None) -> str:
    """``; learner waits for 3 groups (actor-0, 12 s)`` for messages, empty when nobody waits."""
    if status is None or not status.waiting:
        return ""
    one = rank_waits(status)[0]
    return f"; {one.who} waits for {one.what} ({one.culprit}, {one.seconds:.0f} s)"
