"""Runs one source of reward in a child process, supervised: a deadline per batch, killed and restarted.

Thread-safe: calls wait for each other. The child is started at the first call (or by ``start``), stays,
and is replaced after it hung or died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rollout.common.child_processes import kill_family
from rollout.common.frames import read_frame, write_frame
from rollout.common.stacks import STANDARD_ERROR
from rollout.errors import RewardError, RewardUnavailable, SpecError
from rollout.rewards.frames import ANSWER_BYTES_MAX, Request, RewardAnswer
from rollout.rewards.source import RewardSource
from rollout.types import Completion, Message, Row

START_SECONDS_MAX = 120.0
"""Longest time to import the user's module and its libraries."""
STACK_SECONDS_MAX = 5.0
"""How long a hung child may take to say where it hangs."""
STDERR_BYTES_SHOWN = 2000
FAILURE_CHARACTERS_MAX = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    process: subprocess.Popen[bytes]
    requests: int
    answers: int
    alive: int
    stderr: IO[bytes]


class RewardHost:
    """One source, one child. ``close`` when done. ``environment`` None: the child has this process's variables."""

    def __init__(self, source: RewardSource, environment: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._environment = environment
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the child and load the function, so that a broken source is known before it is needed.

        Raises SpecError when it cannot be loaded.
        """
        with self._lock:
            self._started()

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> Any:
        """What the function returned, unchecked.

        Raises RewardError when it raised, hung or died, RewardUnavailable for an InfrastructureError of its.
        """
        with self._lock:
            child = self._started()
            request = Request(prompts=[*map(tuple, prompts)], completions=completions, rows=rows)
            deadline = time.monotonic() + self.source.timeout_seconds
            answer = self._ask(child, request, deadline, lambda: self._hung(child, rows))
        if answer.failure is not None:
            message = _raised(self.source, answer, rows)
            lost = tuple(index for index in answer.lost if 0 <= index < len(rows))
            if not lost:
                raise RewardError(message)
            values = answer.values if isinstance(answer.values, list) else ()
            raise RewardUnavailable(message, lost, values)
        return answer.values

    def close(self) -> None:
        """End the child; idempotent. The next call starts another."""
        with self._lock:
            self._end()

    def _started(self) -> _Child:
        if self._child is None or self._child.process.poll() is not None:
            self._end()
            self._child = _start_child(self._environment)
            self._load(self._child)
        return self._child

    def _load(self, child: _Child) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        late = f"was not loaded within {START_SECONDS_MAX:.0f} s"
        answer = self._ask(child, self.source, deadline, lambda: late)
        if answer.failure is not None:
            self._end()
            raise SpecError(f"reward {self.source.name!r}: {answer.failure}")

    def _ask(
        self, child: _Child, message: object, deadline: float, hung: Callable[[], str]
    ) -> RewardAnswer:
        try:
            write_frame(child.requests, message, deadline)
            return read_frame(child.answers, RewardAnswer, deadline, bytes_max=ANSWER_BYTES_MAX)
        except TimeoutError as error:
            problem = hung()
            self._end()
            raise RewardError(
                f"reward {self.source.name!r} ({self.source.origin}) {problem}"
            ) from error
        except (EOFError, BrokenPipeError, ValueError) as error:
            problem = f"sent no answer: {error}" if isinstance(error, ValueError) else _died(child)
            self._end()
            raise RewardError(
                f"reward {self.source.name!r} ({self.source.origin}) {problem}"
            ) from error

    def _hung(self, child: _Child, rows: Sequence[Row]) -> str:
        where = _ask_where(child)
        return (
            f"did not answer within {self.source.timeout_seconds:g} s for {len(rows)} completions, the "
            f"first of {describe_row(rows[0])}{where}; its process was ended. Make it faster, bound its "
            f"loops and calls, or raise timeoutSeconds."
        )

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        kill_family(child.process.pid)
        child.process.wait()
        child.stderr.close()
        for descriptor in (child.requests, child.answers, child.alive):
            os.close(descriptor)


def _start_child(environment: Mapping[str, str] | None) -> _Child:
    theirs_in, requests = os.pipe()
    answers, theirs_out = os.pipe()
    theirs_alive, alive = os.pipe()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
    inherited = (theirs_in, theirs_out, theirs_alive, os.dup(STANDARD_ERROR))
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollout.rewards.child", *map(str, inherited)],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            pass_fds=inherited,
            env=None if environment is None else dict(environment),
        )
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    os.set_blocking(requests, False)
    return _Child(process=process, requests=requests, answers=answers, alive=alive, stderr=stderr)


def _ask_where(child: _Child) -> str:
    """Where a hung child stands, by its own account: ``, at my_rewards.py line 7 in judge``."""
    before = _stderr_size(child)
    child.process.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + STACK_SECONDS_MAX
    while not (where := _find_frame(child, before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return where and f"; it was at {where}"


def _find_frame(child: _Child, start: int) -> str:
    """The first frame of the user's in what a child has written after ``start``; only whole lines count.

    The file's place is the child's, who goes on writing there: it is not moved.
    """
    written = os.pread(child.stderr.fileno(), _stderr_size(child) - start, start)
    said, _, _ = written.decode(errors="replace").rpartition("\n")
    lines = (line.strip() for line in said.splitlines())
    ours = ("rollout/rewards/", "rollout/common/")
    frames = (one for one in lines if one.startswith("File ") and not any(o in one for o in ours))
    return next(frames, "").removeprefix("File ")


def _stderr_size(child: _Child) -> int:
    return os.fstat(child.stderr.fileno()).st_size


def _died(child: _Child) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(timeout=STACK_SECONDS_MAX)
    code = child.process.poll()
    child.stderr.seek(max(0, _stderr_size(child) - STDERR_BYTES_SHOWN))
    said = child.stderr.read().decode(errors="replace").strip()
    how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
    return f"ended its process ({how}){'; it said: ' + said if said else ''}"


def _raised(source: RewardSource, answer: RewardAnswer, rows: Sequence[Row]) -> str:
    where = "no single row shows it alone"
    if answer.row_index is not None:
        where = (
            f"first for row {answer.row_index} of the batch, {describe_row(rows[answer.row_index])}"
        )
    return f"reward {source.name!r} ({source.origin}) raised {(answer.failure or '')[:FAILURE_CHARACTERS_MAX]}; {where}"


def describe_row(row: Row) -> str:
    """A row in one short line for people."""
    text = str(row.get("prompt", dict(row)))
    return f"prompt {text[:80]!r}{'...' if len(text) > 80 else ''}"
