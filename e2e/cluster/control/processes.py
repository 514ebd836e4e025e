"""Starts the cluster's processes and ends them by pid, never by name.

A process is known by pid and start time, so that a number given to somebody else's process is never signalled. An
`owned` process dies with the process that started it, however that one ends; a detached one lives until it is stopped.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from cluster.errors import StartError

READY_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 10.0  # short: then it is killed
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that the cluster started; `created` is its start time as the kernel tells it."""

    name: str
    pid: int
    created: float
    log: str

    def handle(self) -> psutil.Process | None:
        """The living process; None when it ended (or another has its number)."""
        try:
            found = psutil.Process(self.pid)
            alive = found.create_time() == self.created
            return found if alive and found.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if found := self.handle():
            found.send_signal(number)

    def stop(self, *, gently: bool = False) -> None:
        """End it: at once, or with TERM and ten seconds first."""
        if gently:
            self.signal(signal.SIGTERM)
            _wait_until(lambda: self.handle() is None, STOP_SECONDS_MAX)
        self.signal(signal.SIGKILL)
        _wait_until(lambda: self.handle() is None, STOP_SECONDS_MAX)
        _reap(self.pid)

    def tail(self) -> str:
        """The end of its log."""
        return Path(self.log).read_text(errors="replace")[-2000:]

    def save(self, folder: Path) -> None:
        """Write the pid file."""
        (folder / f"{self.name}.json").write_text(json.dumps(asdict(self)))


def load(folder: Path) -> dict[str, Process]:
    """Every process with a pid file, by name."""
    found = [Process(**json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))]
    return {process.name: process for process in found}


def start(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    owned: bool,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a process in a session of its own, its output in `log`."""
    if owned:
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        pid = os.posix_spawnp(
            command[0],
            list(command),
            dict(os.environ) | dict(environment or {}),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(output)
    return Process(name=name, pid=pid, created=psutil.Process(pid).create_time(), log=str(log))


def wait_ready(process: Process, ready: Callable[[], bool], what: str) -> None:
    """Wait until `ready`.

    Raises:
        StartError: the process ended, or three minutes passed; with the end of its log.
    """
    done = _wait_until(lambda: process.handle() is None or ready(), READY_SECONDS_MAX)
    if process.handle() is None or not done:
        raise StartError(f"{process.name} is not {what}; its log ends with:\n{process.tail()}")


def listens(process: Process, port: int) -> bool:
    """Whether this very process listens on the port: another's answer must not pass for it."""
    found = process.handle()
    if found is None:
        return False
    listening = (c for c in found.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    return any(connection.laddr.port == port for connection in listening)


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # started by another process, which reaps it
