"""Rows from a process that runs the author's code, for one that must not: with deadlines, and nothing but data.

On one machine the process is a child of ours, in a pod that of the container beside ours. One that died is replaced
once for each question; one that hangs, or answers what is no answer, is ended and named. Thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Protocol, TypeVar

import msgspec

from rollout.common.frames import read_frame, write_frame
from rollout.common.machine_memory import usable_memory
from rollout.errors import DataError, DataNotFound
from rollout.plugins.row_messages import (
    ANSWER_BYTES_MAX,
    ROWS_AT_ONCE_MAX,
    Look,
    Open,
    Question,
    Read,
    RowAnswer,
    SourceFacts,
    check_facts,
    check_rows,
    raise_failure,
)
from rollout.types import Row

T = TypeVar("T")

TRIES_MAX = 2
END_SECONDS_MAX = 10.0
CONNECT_POLL_SECONDS = 0.1
SAID_BYTES_SHOWN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBounds:
    """How long the author's code may take, and what it may use. ``memory_bytes_max`` None: half of this machine's."""

    connect_seconds: float = 300.0
    open_seconds: float = 1800.0
    read_seconds: float = 120.0
    answer_bytes_max: int = ANSWER_BYTES_MAX
    memory_bytes_max: int | None = None


class Line(Protocol):
    """A connection to a fresh process that runs the author's code."""

    @property
    def descriptor(self) -> int:
        """Where frames are written and read; does not block."""
        ...

    def end(self) -> str:
        """Close, and have everything ended that it started; what it said last, for people."""
        ...


Connect = Callable[[], Line]


class RowHost:
    """The sources of one run. ``field`` is what the manifest names them by; ``config`` the WorkerConfig as JSON."""

    def __init__(
        self, connect: Connect, config: bytes, field: str, bounds: HostBounds | None = None
    ) -> None:
        self.field = field
        self._connect = connect
        self._config = config
        self._bounds = bounds or HostBounds()
        self._lines: list[Line] = []
        self._facts: dict[str, SourceFacts] | None = None
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, _end_all, self._lines)

    def open(self) -> dict[str, HostedSource]:
        """Every source by role. Raises SpecError or DataError."""
        with self._lock:
            self._with_retry(self._opened)
            assert self._facts is not None
            return {role: HostedSource(self, facts) for role, facts in self._facts.items()}

    def read(self, role: str, positions: Sequence[int]) -> Sequence[Row]:
        """Rows of one source. Raises DataError."""
        rows: list[Row] = []
        for start in range(0, len(positions), ROWS_AT_ONCE_MAX):
            part = list(positions[start : start + ROWS_AT_ONCE_MAX])
            with self._lock:
                answer = self._with_retry(partial(self._read, Read(role=role, positions=part)))
            rows += check_rows(answer.rows, part, self.field)
        return rows

    def close(self) -> None:
        """End the process; idempotent."""
        self._close()

    def _with_retry(self, ask: Callable[[], T]) -> T:
        """Ask, and once more of another process where the first died. Raises DataError."""
        for left in reversed(range(TRIES_MAX)):
            try:
                return ask()
            except _Died as error:
                if not left:
                    raise DataError(f"{self.field}: {error}") from error
        raise AssertionError("at least one try")

    def _read(self, question: Read) -> RowAnswer:
        self._opened()
        return self._ask(question, self._bounds.read_seconds)

    def _opened(self) -> None:
        """Start a process and have it open the sources, where there is none."""
        if self._lines:
            return
        self._lines.append(self._connect())
        answer = self._ask(Open(config=self._config), self._bounds.open_seconds)
        facts = {one.role: check_facts(one, self.field) for one in answer.sources}
        if self._facts is not None and facts != self._facts:
            self._end()
            raise DataNotFound(
                f"{self.field}: the data is not what it was when the run began; put it back, or plan a new run"
            )
        self._facts = facts

    def _ask(self, question: Question, seconds: float) -> RowAnswer:
        try:
            return ask(self._lines[0], question, self.field, seconds, self._bounds)
        except _Died as error:
            raise _Died(f"{error}{_quote(self._end())}") from error
        except _Unusable as error:
            raise DataError(f"{self.field}: {error}{_quote(self._end())}") from error

    def _end(self) -> str:
        return self._lines.pop().end() if self._lines else ""


class HostedSource:
    """A DataSource whose rows come from the author's process."""

    def __init__(self, host: RowHost, facts: SourceFacts) -> None:
        self._host = host
        self._facts = facts
        self.digest = facts.digest
        self.window = facts.window

    def __len__(self) -> int:
        return self._facts.length

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions. Raises DataError."""
        return self._host.read(self._facts.role, positions)


def look(connect: Connect, question: Look, field: str, bounds: HostBounds | None = None) -> bytes:
    """The answer as JSON, from a process of its own. Raises SpecError, DataError, HubUnreachable."""
    bounds = bounds or HostBounds()
    line = connect()
    try:
        return ask(line, question, field, bounds.open_seconds, bounds).found
    except (_Died, _Unusable) as error:
        raise DataError(f"{field}: {error}{_quote(line.end())}") from error
    finally:
        line.end()


class _Died(Exception):  # noqa: N818 - a state
    """The process is gone: the next one may not be."""


class _Unusable(Exception):  # noqa: N818 - a state
    """It hangs, or what it wrote is no answer."""


def ask(
    line: Line, question: Question, field: str, seconds: float, bounds: HostBounds
) -> RowAnswer:
    """One answer. Raises what it says, ``_Died`` and ``_Unusable``."""
    deadline = time.monotonic() + seconds
    try:
        write_frame(line.descriptor, question, deadline)
        answer = read_frame(line.descriptor, RowAnswer, deadline, bytes_max=bounds.answer_bytes_max)
    except TimeoutError as error:
        raise _Unusable(f"did not answer within {seconds:g} s and was ended") from error
    except (ValueError, msgspec.DecodeError) as error:
        raise _Unusable(f"sent no answer: {error}") from error
    except (EOFError, OSError) as error:
        raise _Died("ended its process") from error
    raise_failure(answer, field)
    return answer


def _quote(said: str) -> str:
    return f"; {said}" if said else ""


def _end_all(lines: list[Line]) -> None:
    while lines:
        lines.pop().end()


# -- a child of ours --------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ChildLine:
    """A child of this process."""

    process: subprocess.Popen[bytes]
    end_of_ours: socket.socket
    output: IO[bytes]

    @property
    def descriptor(self) -> int:
        """Our end of the pair."""
        return self.end_of_ours.fileno()

    def end(self) -> str:
        """Close: its guard ends what there is. What it printed last."""
        if self.output.closed:
            return ""
        self.end_of_ours.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS_MAX)
        _kill_session(self.process)
        said = _tail(self.output)
        self.output.close()
        return said


def start_child(
    environment: Mapping[str, str], bounds: HostBounds | None = None, log: Path | None = None
) -> ChildLine:
    """A child with this environment and one end of a pair of sockets; it prints to ``log``."""
    ours, theirs = socket.socketpair()
    output = tempfile.TemporaryFile() if log is None else log.open("a+b")  # noqa: SIM115 - closed by its line
    try:
        process = subprocess.Popen(
            rows_command(theirs.fileno(), bounds),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    finally:
        theirs.close()
    os.set_blocking(ours.fileno(), False)
    return ChildLine(process=process, end_of_ours=ours, output=output)


def rows_command(descriptor: int, bounds: HostBounds | None = None) -> list[str]:
    """Serves the author's data at this inherited end of a connection, with so much memory."""
    memory = (bounds or HostBounds()).memory_bytes_max or usable_memory() // 2
    arguments = ("--descriptor", str(descriptor), "--memory-bytes-max", str(memory))
    return [sys.executable, "-m", "rollout.entrypoints.rows", *arguments]


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - SAID_BYTES_SHOWN))
    said = " ".join(output.read().decode(errors="replace").split())
    return f"it said: {said}" if said else ""


# -- the container beside ours ----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SocketLine:
    """A connection to the container beside this one, which starts a process for it."""

    connection: socket.socket

    @property
    def descriptor(self) -> int:
        """The connection."""
        return self.connection.fileno()

    def end(self) -> str:
        """Close: the other side ends what there is."""
        self.connection.close()
        return "see the log of the container rows"


def connect_socket(path: Path, bounds: HostBounds | None = None) -> SocketLine:
    """Connect, waiting for the container, which may be starting again. Raises DataError when it does not listen in time."""
    seconds = (bounds or HostBounds()).connect_seconds
    deadline = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(0)  # a listener that was stopped does not hold us up
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise DataError(
                    f"nobody opens the data: the container rows did not listen at {path} within"
                    f" {seconds:g} s ({error}); see its log"
                ) from error
            time.sleep(CONNECT_POLL_SECONDS)
            continue
        return SocketLine(connection=connection)
