"""A run that outlives its terminal: it goes on in a session of its own, and is looked at and stopped from anywhere.

The process divides before anything of the run is started. What it would have said goes to ``logs/supervisor.log`` of
the run's folder. Nothing is passed between the two but that folder and its lock.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollout.errors import SpecError
from rollout.runs.run_dir import RunDir, find_owner

POLL_SECONDS = 0.1
LOG_NAME = "supervisor.log"
STOP_SECONDS = 600.0
"""How long a run may take to save itself before ``stop_run`` gives up waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A run that goes on without us. ``pid`` is its supervisor."""

    run: RunDir
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedFirst:
    """It ended before any process of a run was there: with this exit code and these words."""

    exit_code: int
    words: str


def detach(home: Path, run_dir: Path | None) -> Started | EndedFirst | None:
    """Divide: None in the process that goes on; in this one, what became of it. Waits until a run has begun.

    ``home`` is where runs lie, ``run_dir`` where this one was told to. An interrupt while waiting is the run's, too.
    """
    words = (home if run_dir is None else run_dir.absolute().parent) / f".{uuid.uuid4()}.log"
    words.parent.mkdir(parents=True, exist_ok=True)
    divided_at = time.time_ns()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _leave_terminal(words)
        return None
    try:
        return _wait_for_run(pid, words, divided_at, home, run_dir)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        words.unlink(missing_ok=True)
        raise


def _leave_terminal(words: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)


def _wait_for_run(
    pid: int, words: Path, divided_at: int, home: Path, run_dir: Path | None
) -> Started | EndedFirst:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            text = words.read_text() if words.exists() else ""
            words.unlink(missing_ok=True)
            return EndedFirst(exit_code=abs(os.waitstatus_to_exitcode(status)), words=text)
        for run in _candidates(home, run_dir):
            if _has_begun(run, pid, divided_at):
                _keep_words(words, run)
                return Started(run=run, pid=pid)
        time.sleep(POLL_SECONDS)


def _candidates(home: Path, run_dir: Path | None) -> Iterator[RunDir]:
    if run_dir is not None:
        yield RunDir(path=run_dir.absolute())
    for lock in (home if run_dir is None else run_dir.absolute()).glob("*/supervisor.lock"):
        yield RunDir(path=lock.parent)


def _has_begun(run: RunDir, pid: int, since_ns: int) -> bool:
    """Its own configuration is written once everything that it names has been looked at."""
    try:
        written = run.worker_config.stat().st_mtime_ns
    except OSError:
        return False
    return written >= since_ns and find_owner(run) == pid


def _keep_words(words: Path, run: RunDir) -> None:
    """The log of this start; that of an earlier one stays beside it under a number."""
    log = run.logs / LOG_NAME
    if log.exists():
        number = sum(1 for _ in run.logs.glob("supervisor.*.log")) + 1
        log.rename(run.logs / f"supervisor.{number}.log")
    words.rename(log)


def stop_run(run: RunDir, *, at_once: bool, seconds_max: float = STOP_SECONDS) -> bool:
    """Tell a run to save itself and stop, as Ctrl-C does, and wait until it has; ``at_once``: as a second Ctrl-C does.

    False: it was not running. Raises SpecError where it takes longer than ``seconds_max``.
    """
    owner = find_owner(run)
    if owner is None:
        return False
    os.kill(owner, signal.SIGINT)
    if at_once:
        time.sleep(POLL_SECONDS)
        os.kill(owner, signal.SIGINT)
    deadline = time.monotonic() + seconds_max
    while find_owner(run) == owner:
        if time.monotonic() > deadline:
            raise SpecError(
                f"{run.name} has not stopped within {seconds_max:.0f} s: it is still saving; wait for it with"
                f" rollout attach {run.name}, or end it with rollout stop {run.name} --now"
            )
        time.sleep(POLL_SECONDS)
    return True
