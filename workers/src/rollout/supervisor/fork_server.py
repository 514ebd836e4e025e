"""Starts processes by forking them from one that has imported what they need already.

A learner's and an actor's imports cost seconds of CPU each. A supervisor has them done once, in a
fork server (``rollout.entrypoints.fork_server``), which forks its processes, also those that take the
place of one that died. They are the supervisor's own children, as if it had started them by
``python -m``: exit status, pidfd, parent-death signal, session, files, environment and folder are the
same. Where there is no such server, or it fails, processes are started plainly.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rollout.common.child_processes import Process, ProcessSpec, start_process, start_tied

log = logging.getLogger(__name__)

SWITCH_VARIABLE = "ROLLOUT_FORK_SERVER"
"""``0``: every process is started plainly."""
OWN_VARIABLES = "ROLLOUT_"
"""Variables of this prefix are read when they are needed, never at import."""
FORKED = frozenset(
    {"rollout.entrypoints.learner", "rollout.entrypoints.actor", "rollout.entrypoints.model"}
)
"""Modules whose imports are worth it."""
READY = b"ready"
READY_SECONDS_MAX = 300.0
FORK_SECONDS_MAX = 30.0
LAST_WORDS_SECONDS = 5.0
MODULES_BYTES_MAX = 4096
CHILDREN_SECONDS = 0.02
TITLE_ROOM = 1024
INHERITED: list[ForkServer] = []
"""Fork servers that this process was given by the one that forked it: whoever starts a run takes one."""
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One process to be forked: ``words`` are a module and its arguments.

    ``numbers``: what its open files shall be called, in the order in which they are sent. ``parent`` is
    the id of whoever asks. ``passes_on``: it gets so many fork servers of its own, one for each run that it starts.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    parent: int
    numbers: tuple[int, ...]
    passes_on: int = 0


class ForkedProcess:
    """A child that the fork server has forked: what ``subprocess.Popen`` is to one that we started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, waited for. Raises TimeoutExpired."""
        over = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if over is not None and time.monotonic() >= over:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(CHILDREN_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """One fork server and the channel to it; ``environment`` is what it was started with."""

    def __init__(
        self, process: Process, channel: socket.socket, *, environment: Mapping[str, str]
    ) -> None:
        self._process, self._channel = process, channel
        self._environment = _foreign(environment)
        self._deadline = time.monotonic() + READY_SECONDS_MAX
        self._is_ready = False

    @property
    def descriptor(self) -> int:
        """Readable once the server is ready or gone; -1 when nobody needs to look."""
        return -1 if self._is_ready or self._channel.fileno() < 0 else self._channel.fileno()

    def is_ready(self) -> bool:
        """Whether it has imported everything. Raises ForkServerFailed when it never will."""
        if not self._is_ready and self._readable(0.0):
            if self._channel.recv(64) != READY:
                self._hear_out()
                raise ForkServerFailed("it ended while it imported")
            self._is_ready = True
        if not self._is_ready and time.monotonic() > self._deadline:
            raise ForkServerFailed(f"it was not ready within {READY_SECONDS_MAX:.0f} s")
        return self._is_ready

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment may come from it: libraries have read theirs."""
        return _foreign(environment) == self._environment

    def fork(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        files: Mapping[int, int],
        folder: Path | None = None,
        passes_on: int = 0,
    ) -> ForkedProcess:
        """A child of ours that runs a module; ``files`` are our open files by the number they shall have.

        Raises ForkServerFailed, and then nothing was started.
        """
        order = Order(
            words=tuple(words),
            environment=environment,
            folder=str(folder or Path.cwd()),
            parent=os.getpid(),
            numbers=tuple(files),
            passes_on=passes_on,
        )
        try:
            with _as_memory(order) as body, _reaping_orphans():
                socket.send_fds(self._channel, [b"fork"], [body, *files.values()])
                process = self._take_child()
        except (OSError, ValueError) as error:
            raise ForkServerFailed(f"it did not fork: {error or 'it ended'}") from error
        return process

    def close(self) -> None:
        """End it; what it has forked lives on. Idempotent."""
        self._channel.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Close our end alone: it is somebody else's server."""
        self._channel.close()

    def _hear_out(self) -> None:
        """Let it write why it ends: its channel closes before its traceback stands in the log."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS_SECONDS)

    def _take_child(self) -> ForkedProcess:
        if not self._readable(FORK_SECONDS_MAX):
            raise ForkServerFailed(f"it did not answer within {FORK_SECONDS_MAX:.0f} s")
        pid = int(self._channel.recv(64))
        # Raises ChildProcessError for a process that is not ours; it ends by itself then.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ForkedProcess(pid)

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self._channel], [], [], seconds)[0])


class ForkServerFailed(Exception):  # noqa: N818 - a state; whoever asked starts its process plainly
    """There is no fork server any more, or it does not do what it is for."""


def open_fork_server(
    modules: Iterable[str], environment: Mapping[str, str], log_file: Path
) -> ForkServer:
    """Start a fork server that gets ready for these modules while we go on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = ("--channel", str(theirs.fileno()), "--room", "." * TITLE_ROOM)
    with theirs, log_file.open("ab") as output:
        keep = (theirs.fileno(),)
        module = "rollout.entrypoints.fork_server"
        process = start_tied(module, *words, env=environment, stdout=output, keep=keep)
    ours.send(json.dumps(sorted(modules)).encode())
    return ForkServer(process, ours, environment=environment)


class Starts(Protocol):
    """Starts the processes of a run."""

    @property
    def descriptor(self) -> int:
        """Readable once ``is_ready`` may have changed; -1 when it will not."""
        ...

    def is_ready(self, spec: ProcessSpec) -> bool:
        """Whether ``start`` would not wait for what is under way."""
        ...

    def start(self, spec: ProcessSpec, *, keep: Iterable[int] = ()) -> Process:
        """Start it in its own session, its output appended to its log, ``keep`` descriptors inherited."""
        ...

    def close(self) -> None:
        """End what is there to start others; idempotent."""
        ...


@dataclass(slots=True, kw_only=True)
class WarmStarts:
    """Starts the processes of a run: forked where a server can, plainly where it cannot."""

    server: ForkServer | None
    note: Callable[[str], None] = log.warning

    @property
    def descriptor(self) -> int:
        """Readable once ``is_ready`` may have changed; -1 when it will not."""
        return -1 if self.server is None else self.server.descriptor

    def is_ready(self, spec: ProcessSpec) -> bool:
        """Whether ``start`` would not wait for imports that are under way."""
        try:
            return self.server is None or spec.module not in FORKED or self.server.is_ready()
        except ForkServerFailed as error:
            self._give_up(error)
            return True

    def start(self, spec: ProcessSpec, *, keep: Iterable[int] = ()) -> Process:
        """Start it in its own session, its output appended to its log, ``keep`` descriptors inherited."""
        environment = {**os.environ, **spec.env}
        server = self.server
        if server is None or spec.module not in FORKED or not server.serves(environment):
            return start_process(spec, keep=keep)
        try:
            with Path(os.devnull).open("rb") as nothing, spec.log.open("ab") as output:
                out = output.fileno()
                files = {0: nothing.fileno(), 1: out, 2: out, **{one: one for one in keep}}
                words = (spec.module, *spec.arguments)
                return server.fork(words, environment=environment, files=files)
        except ForkServerFailed as error:
            self._give_up(error)
            return start_process(spec, keep=keep)

    def close(self) -> None:
        """End the server; idempotent."""
        server, self.server = self.server, None
        if server is not None:
            server.close()

    def _give_up(self, error: ForkServerFailed) -> None:
        self.close()
        self.note(f"the fork server is gone ({error}): processes are started plainly from now on")


def open_starts(
    specs: Sequence[ProcessSpec],
    logs: Path,
    *,
    accelerators: int,
    note: Callable[[str], None] = log.warning,
) -> WarmStarts:
    """How a run's processes are started here.

    Plainly where there is no subreaper (Linux has it), where devices would be touched before a fork,
    and where the user says so (``ROLLOUT_FORK_SERVER=0``).
    """
    forked = [spec for spec in specs if spec.module in FORKED]
    off = os.environ.get(SWITCH_VARIABLE) == "0" or accelerators > 0 or sys.platform != "linux"
    if off or not forked:
        return WarmStarts(server=None)
    environment = {**os.environ, **forked[0].env}
    if INHERITED and INHERITED[0].serves(environment):
        return WarmStarts(server=INHERITED.pop(), note=note)
    modules = {spec.module for spec in forked}
    server = open_fork_server(modules, environment, logs / "fork-server.log")
    return WarmStarts(server=server, note=note)


def _foreign(environment: Mapping[str, str]) -> dict[str, str]:
    """What libraries may have read when they were imported."""
    return {
        name: value for name, value in environment.items() if not name.startswith(OWN_VARIABLES)
    }


@contextmanager
def _as_memory(order: Order) -> Generator[int]:
    """A file in memory that holds the order: environments are larger than a message may be."""
    descriptor = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, json.dumps(asdict(order)).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _reaping_orphans() -> Generator[None]:
    """Be given what our descendants leave behind, for as long as a fork takes."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no subreaper")
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
