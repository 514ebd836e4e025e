"""Keeps the processes of one run alive until the coordinator says how the run ended.

Starts them all at once, restarts those that die (``restarts.py``), shows progress, turns Ctrl-C into
a saved stop, and leaves no process behind. What the run is worth is decided by the coordinator; exit
codes of processes are only hints. Must run in the thread that stays alive as long as the run.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rollout.common.child_processes import (
    Process,
    ProcessSpec,
    end_processes,
    last_error,
    log_size,
    log_tail,
    open_pidfd,
    signal_group,
)
from rollout.common.restarts import GiveUp, ProcessEnd, describe_exit, plan_restart
from rollout.learner.standby.seat import read_holder
from rollout.protocol.client import PATIENCE_SECONDS
from rollout.protocol.status import Status
from rollout.supervisor.display.progress import Display
from rollout.supervisor.display.remarks import Remarks
from rollout.supervisor.evidence import tell_of_all, tell_of_stuck, witness_of
from rollout.supervisor.fork_server import Starts, WarmStarts
from rollout.supervisor.poller import StatusPoller
from rollout.supervisor.watch import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OUTSIDE,
    Bounds,
    Ended,
    LastMove,
    check_bounds,
    conclude,
    find_stuck,
    has_left,
    reason_of,
    track_progress,
)

TICK_SECONDS = 0.5
LEAVE_SECONDS = 20.0
"""How long workers may take to leave once the run has ended."""
TERM_SECONDS = 10.0
"""How long a process may take between SIGTERM and SIGKILL."""
ALONE_SECONDS = 2.0
"""The same for workers whose coordinator is gone: nobody takes what they have."""
RETIRE_SECONDS = 120.0
"""How long an actor that is not wanted any more may take to finish what it has."""
SETTLE_SECONDS = 2.0
"""A process that left in peace gets a successor only when the run has not ended by then."""
SILENT_SECONDS_TOLD = 10.0
"""A coordinator that does not answer for so long is named to the user: everybody waits for it."""
SILENT_SECONDS_MAX = 60.0
"""A coordinator that does not answer for so long is started again; a process this young never is."""
DISK_FREE_BYTES_MIN = 1 << 20
DISK_FULL = (
    "no space left on the run's disk; nothing committed is lost: free space (old runs, caches), then "
    "resume the run"
)
PERMANENT_EXITS = frozenset({EXIT_INPUT})
"""Exit codes that no restart would change."""


@dataclass(slots=True, kw_only=True)
class _Child:
    """One process and its history."""

    spec: ProcessSpec
    process: Process | None = None
    pidfd: int = -1
    started_at: float = 0.0
    log_start: int = 0
    start_at: float | None = 0.0
    retired_at: float | None = None
    endings: list[ProcessEnd] = field(default_factory=list)


class Supervisor:
    """One run's processes; ``run`` once."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        poller: StatusPoller,
        display: Display,
        bounds: Bounds,
        lock_fileno: int,
        plan_actor: Callable[[int], ProcessSpec] | None = None,
        starts: Starts | None = None,
    ) -> None:
        """``plan_actor`` gives the process of an actor by its index, where their number may change.

        ``starts`` is ours to close; None starts every process plainly.
        """
        self._children = {spec.name: _Child(spec=spec) for spec in specs}
        self._plan_actor = plan_actor
        self._poller = poller
        self._display, self._remarks = display, Remarks()
        self._bounds = bounds
        self._lock_fileno = lock_fileno
        self._starts: Starts = starts or WarmStarts(server=None)
        self._interrupts = 0
        self._terminated = False
        self._stopping = False
        self._told_silence = False
        self._progress = LastMove()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every process that can be by now; returns at once. ``run`` starts the others."""
        for child in self._children.values():
            if self._starts.is_ready(child.spec):
                self._start(child)

    def run(self) -> Ended:
        """Watch until the end, then leave nothing running."""
        started_at = time.monotonic()
        self._progress = LastMove(at=started_at)
        self._poller.start()
        with self._interruptible():
            try:
                ended = self._watch(started_at)
                self._leave()
            finally:
                self._poller.close()
                self.kill()
                os.close(self._wake_read)
                os.close(self._wake_write)
        return ended

    def kill(self) -> None:
        """End whatever still runs, at once."""
        self._starts.close()
        end_processes(self._running(), grace_seconds=0.0, ask=False)

    def _watch(self, started_at: float) -> Ended:
        while True:
            self._wait(TICK_SECONDS)
            now = time.monotonic()
            if self._interrupts > 1:
                return Ended(exit_code=EXIT_INTERRUPTED, reason="Interrupted", message="at once")
            if self._interrupts == 1 and not self._stopping:
                self._ask_to_stop()
            ended = self._reap(now) or self._observe(started_at, now) or self._all_left(now)
            if ended is not None:
                return ended
            for child in self._children.values():
                if child.process is None and child.start_at is not None and now >= child.start_at:
                    self._start_due(child)

    def _observe(self, started_at: float, now: float) -> Ended | None:
        status = self._poller.latest
        if status is not None:
            self._display.show(status)
            for remark in self._remarks.news(status):
                self._display.note(remark)
            self._tell_silence()
            if status.outcome is not None:
                return conclude(status.outcome, interrupted=self._interrupts > 0)
            self._progress = track_progress(self._progress, status, now)
            self._end_stuck(status, now)
            self._scale(status.actors_wanted, now)
        return check_bounds(status, started_at=started_at, now=now, bounds=self._bounds)

    def _tell_silence(self) -> None:
        """Name the coordinator, once a silence, while nobody else can say who is waited for."""
        seconds = self._poller.silent_seconds
        if seconds > SILENT_SECONDS_TOLD and not self._told_silence:
            self._display.note(
                f"the coordinator has not answered for {seconds:.0f} s: every worker waits for it, up to"
                f" {PATIENCE_SECONDS:.0f} s (logs/coordinator.log)"
            )
        self._told_silence = seconds > SILENT_SECONDS_TOLD

    def _end_stuck(self, status: Status, now: float) -> None:
        """End a process that does not move; it is started again like any that died."""
        name = find_stuck(status, self._progress, now, self._bounds)
        if self._poller.silent_seconds > min(SILENT_SECONDS_MAX, self._bounds.no_progress_seconds):
            name = "coordinator"
        child = self._find(name or "")
        if child is None or child.process is None or now - child.started_at < SILENT_SECONDS_MAX:
            return
        kept = tell_of_stuck(witness_of(child.spec, child.process))
        self._display.note(f"{name} has not moved for too long: starting it again{kept}")
        signal_group(child.process, signal.SIGKILL)
        self._progress = LastMove(mark=self._progress.mark, at=now)

    def _find(self, worker: str) -> _Child | None:
        """The process that the coordinator knows by this name: of two learners the one that has the seat."""
        child = self._children.get(worker)
        if child is None or child.spec.role != "learner":
            return child
        return self._children.get(read_holder(child.spec.log.parent.parent), child)

    def _scale(self, wanted: int | None, now: float) -> None:
        """Have as many actors as the coordinator wants: the highest go first, in peace."""
        if wanted is None or self._plan_actor is None or self._stopping:
            return
        specs = {spec.name: spec for spec in map(self._plan_actor, range(wanted))}
        for name, spec in specs.items():
            child = self._children.setdefault(name, _Child(spec=spec))
            if child.retired_at is not None and child.process is None:
                child.retired_at, child.start_at = None, now
        for name, child in self._children.items():
            if child.spec.role == "actor" and name not in specs:
                self._retire(child, now)

    def _retire(self, child: _Child, now: float) -> None:
        """Ask an actor to finish what it has and to go; end it when that takes too long."""
        if child.retired_at is None:
            child.retired_at, child.start_at = now, None
            if child.process is not None:
                child.process.terminate()
        elif child.process is not None and now - child.retired_at > RETIRE_SECONDS:
            signal_group(child.process, signal.SIGKILL)

    def _all_left(self, now: float) -> Ended | None:
        """A stop whose workers are gone is over, also when one of them went without a word."""
        workers = [c for c in self._children.values() if c.spec.role != "coordinator"]
        last = max((c.endings[-1].ended_at for c in workers if c.endings), default=0.0)
        if not self._stopping or self._running(workers) or now - last < SETTLE_SECONDS:
            return None
        return Ended(exit_code=EXIT_INTERRUPTED, reason="Stopped", message="Interrupted")

    def _leave(self) -> None:
        """Let the workers go by themselves where the coordinator has told them, then end the rest."""
        if self._interrupts > 1:
            return
        coordinator = [c for c in self._children.values() if c.spec.role == "coordinator"]
        workers = [c for c in self._children.values() if c.spec.role != "coordinator"]
        status = self._poller.latest
        if status is not None and status.outcome is not None:
            self._wait_for(workers, LEAVE_SECONDS)
            self._display.show(status)
        grace = TERM_SECONDS if self._running(coordinator) else ALONE_SECONDS
        end_processes(self._running(workers), grace_seconds=grace)
        end_processes(self._running(coordinator), grace_seconds=TERM_SECONDS)

    def _wait_for(self, children: Sequence[_Child], seconds_max: float) -> None:
        deadline = time.monotonic() + seconds_max
        while self._running(children) and time.monotonic() < deadline and self._interrupts < 2:
            self._wait(0.1)
            for child in children:
                if child.process is not None and child.process.poll() is not None:
                    self._close(child)

    # -- processes --------------------------------------------------------------------------------

    def _running(self, children: Sequence[_Child] | None = None) -> list[Process]:
        everyone = self._children.values() if children is None else children
        return [child.process for child in everyone if child.process is not None]

    def _start(self, child: _Child) -> None:
        child.log_start = log_size(child.spec.log)
        child.process = self._starts.start(child.spec, keep=(self._lock_fileno,))
        child.pidfd = open_pidfd(child.process.pid)
        child.started_at = time.monotonic()
        child.start_at = None

    def _start_due(self, child: _Child) -> None:
        """Start a process once it can be, unless it was its time to go."""
        leaving = self._stopping and child.spec.role != "coordinator"
        if leaving or has_left(self._poller.latest, child.spec.worker):
            child.start_at = None
        elif self._starts.is_ready(child.spec):
            self._start(child)

    def _close(self, child: _Child) -> None:
        """Forget a process that ended, with everything it started."""
        if child.process is not None:
            signal_group(child.process, signal.SIGKILL)
            child.process = None
            if child.pidfd >= 0:
                os.close(child.pidfd)
            child.pidfd = -1

    def _reap(self, now: float) -> Ended | None:
        """Take in what ended and decide on its restart; the run's end when there is no restart."""
        for child in self._children.values():
            code = None if child.process is None else child.process.poll()
            if code is None:
                continue
            self._close(child)
            self._poller.poll_now()
            error = last_error(log_tail(child.spec.log, start=child.log_start))
            child.endings.append(
                ProcessEnd(started_at=child.started_at, ended_at=now, code=code, error=error)
            )
            ended = self._after_ending(child, code, now)
            if ended is not None:
                return ended
        return None

    def _after_ending(self, child: _Child, code: int, now: float) -> Ended | None:
        name = child.spec.name
        if child.retired_at is not None:
            return None
        decision = plan_restart(name, child.endings, child.spec.restart)
        if code in PERMANENT_EXITS:
            decision = GiveUp(reason=f"{name} ended: {describe_exit(code)}")
        if code != 0 and is_disk_full(child.spec.log.parent):
            decision = GiveUp(reason=f"{name} ended ({describe_exit(code)}): {DISK_FULL}")
        others = [one for one in self._children.values() if one.spec.worker == child.spec.worker]
        if isinstance(decision, GiveUp) and code != EXIT_INPUT and self._running(others):
            self._display.note(f"{decision.reason}: the run goes on without a standby")
            return None
        if isinstance(decision, GiveUp):
            return Ended(
                exit_code=code if code in {EXIT_INPUT, EXIT_OUTSIDE} else EXIT_FAILED,
                reason=reason_of(child.spec.role),
                message=f"{decision.reason}\n{_why(child)}",
            )
        if code != 0 and not (self._stopping and child.spec.role != "coordinator"):
            self._display.note(f"{name} died ({describe_exit(code)}): starting it again")
        child.start_at = decision.at if code != 0 else max(decision.at, now + SETTLE_SECONDS)
        return None

    # -- waiting and signals ----------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        """Sleep until a process ends, a signal comes, or the time is over."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._starts.descriptor >= 0:
            poll.register(self._starts.descriptor, select.POLLIN)
        for child in self._children.values():
            if child.pidfd >= 0:
                poll.register(child.pidfd, select.POLLIN)
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == self._wake_read:
                os.read(self._wake_read, 1024)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's signature
        """Count it and wake the loop, which acts: nothing else is safe in a signal handler."""
        self._interrupts += 1
        self._terminated |= number == signal.SIGTERM
        os.write(self._wake_write, b"!")

    def _ask_to_stop(self) -> None:
        """The first Ctrl-C: stop at the next step boundary, state saved. The second ends all at once.

        Where everyone stands at a SIGTERM is kept first: who sends one may kill us soon.
        """
        self._stopping = True
        if self._terminated:
            everyone = self._children.values()
            asked = [witness_of(one.spec, one.process) for one in everyone if one.process]
            self._display.note(tell_of_all(asked))
        self._poller.stop_run("Interrupted")
        self._display.note(
            "stopping at the next step boundary, state saved; press Ctrl-C again to stop at once"
        )

    @contextmanager
    def _interruptible(self) -> Generator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP ourselves, where Python lets us (the main thread)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before: dict[signal.Signals, Any] = {n: signal.signal(n, self._interrupt) for n in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def is_disk_full(folder: Path) -> bool:
    """Whether the file system has no room even for a log."""
    return shutil.disk_usage(folder).free < DISK_FREE_BYTES_MIN


def _why(child: _Child) -> str:
    """The error a process printed last, else the end of its log."""
    tail = log_tail(child.spec.log, start=child.log_start)
    return f"{last_error(tail) or tail} (log: {child.spec.log})"
