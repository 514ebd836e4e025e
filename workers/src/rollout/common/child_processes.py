"""Starts and ends the processes of a run. Each lives in a session of its own and dies with us.

Must be called from one thread that outlives the processes: the kernel ties a child to the thread
that forked it (``rollout.common.parent_death``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from rollout.common.parent_death import tied_argv
from rollout.common.restarts import RestartRules

POLL_SECONDS = 0.02


_LAST_WORDS = re.compile(r"error:|[A-Za-z_][\w.]*(Error|Exception)\b")


class Process(Protocol):
    """A child of ours, as ``subprocess.Popen`` shows it, however it was started."""

    @property
    def pid(self) -> int:
        """Its id, and its session's."""
        ...

    @property
    def returncode(self) -> int | None:
        """What ``poll`` or ``wait`` have found."""
        ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, waited for. Raises TimeoutExpired."""
        ...

    def terminate(self) -> None:
        """SIGTERM."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process to keep alive: a module and its arguments.

    ``env`` is added to ours; ``name`` is unique in a run. ``role`` is coordinator, actor or learner.
    """

    name: str
    role: str
    module: str
    arguments: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    restart: RestartRules = field(default_factory=RestartRules)

    @property
    def worker(self) -> str:
        """The name by which the coordinator knows it: of two learners, each, that of the one that trains."""
        return self.role if self.role == "learner" else self.name


def start_process(spec: ProcessSpec, *, keep: Iterable[int] = ()) -> subprocess.Popen[bytes]:
    """Start it in its own session, its output appended to its log, ``keep`` descriptors inherited."""
    environment = {**os.environ, **spec.env}
    with spec.log.open("ab") as log:
        return start_tied(spec.module, *spec.arguments, env=environment, stdout=log, keep=keep)


def start_tied(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes] = subprocess.STDOUT,
    keep: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a module in a session of its own, tied to this process; streams as ``subprocess.Popen`` takes them."""
    return subprocess.Popen(
        tied_argv(module, *arguments, parent=os.getpid()),
        env=dict(env),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        pass_fds=tuple(keep),
    )


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where there is no such thing."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1


def kill_unread(process: asyncio.subprocess.Process) -> None:
    """SIGKILL to a child that asyncio waits for, unless its end is known.

    asyncio's own `kill` asks first whether the child has ended, and so takes the exit status from the thread that waits
    for it: "Unknown child process pid", and 255 in place of the status.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def signal_group(process: Process, number: signal.Signals) -> None:
    """Signal a process and all it started in its session; a no-op when they are gone."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def end_processes(processes: Iterable[Process], *, grace_seconds: float, ask: bool = True) -> None:
    """End them all: SIGTERM when ``ask``, then SIGKILL for what is left after the grace."""
    everyone = list(processes)
    if ask:
        for process in everyone:
            if process.poll() is None:
                process.terminate()
        wait_processes(everyone, seconds_max=grace_seconds)
    for process in everyone:
        signal_group(process, signal.SIGKILL)
    for process in everyone:
        process.wait()


def kill_family(pid: int) -> None:
    """SIGKILL to a process and to all below it, in whatever session they stand; a no-op when it is gone.

    It is stopped while they are looked for, so that it starts no more; what they start meanwhile is looked for again.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    killed: set[int] = set()
    while new := set(descendants(pid)) - killed:
        for one in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        killed |= new
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes below this one, those of other sessions included; nothing when it is gone."""
    import psutil  # what only starts processes does without

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def wait_processes(processes: Iterable[Process], *, seconds_max: float) -> bool:
    """Whether all ended within the bound."""
    deadline = time.monotonic() + seconds_max
    everyone = list(processes)
    while any(process.poll() is None for process in everyone):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def log_size(path: Path) -> int:
    """Bytes in a log now; 0 when there is none."""
    return path.stat().st_size if path.exists() else 0


def log_tail(path: Path, *, start: int = 0, lines_max: int = 15, bytes_max: int = 16_384) -> str:
    """The last lines of a log written after byte ``start``; empty when there are none."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - bytes_max))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines_max:])


def last_error(text: str) -> str:
    """What a process said it died of, or nothing: its last ``error:`` line, or where a traceback ends."""
    found = [line for line in text.splitlines() if _LAST_WORDS.match(line)]
    return found[-1] if found else ""


def is_running(pid: int) -> bool:
    """Whether a process of this machine runs; a zombie does not. One that this user may not look at is taken to run."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return pid > 0 and _is_hidden(pid)
    return bool(status) and status[0] not in {"Z", "X"}


def _is_hidden(pid: int) -> bool:
    """Whether there is a process with this number, which ``/proc`` does not show everybody."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
