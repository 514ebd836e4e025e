"""Run directories: where one run on this machine keeps everything it has.

``$ROLLOUT_HOME/<name>-<n>`` (default ``./runs``). One supervisor at a time owns a directory: it holds
an advisory lock whose open file its processes inherit, so the lock is free only when the last of
them is gone. Knows the names of files, nothing of what is in them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout.common.child_processes import is_running
from rollout.errors import SpecError

RUNS_MAX = 100_000
LEFTOVERS_SECONDS_MAX = 15.0
"""How long a new supervisor waits for the dying processes of a killed one."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """The layout of one run's directory."""

    path: Path

    @property
    def name(self) -> str:
        """The directory's name: ``<run name>-<n>``."""
        return self.path.name

    @property
    def manifest(self) -> Path:
        """The manifest as it was resolved for this run."""
        return self.path / "run.yaml"

    @property
    def worker_config(self) -> Path:
        """What the run is, once it has begun; it stays while the run is gone on with, whoever is killed then."""
        return self.path / "worker.json"

    @property
    def attempt_config(self) -> Path:
        """The same, as every process of this start reads it: gone from its beginning until all that it names is found."""
        return self.path / "attempt.json"

    @property
    def token(self) -> Path:
        """The bearer token of this run's coordinator; mode 0600."""
        return self.path / "token"

    @property
    def ledger(self) -> Path:
        """The SQLite ledger."""
        return self.path / "ledger.db"

    @property
    def objects(self) -> Path:
        """The content-addressed store."""
        return self.path / "objects"

    @property
    def snapshots(self) -> Path:
        """Manifests of snapshots."""
        return self.path / "snapshots"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.path / "logs"

    @property
    def code(self) -> Path:
        """User functions, pickled."""
        return self.path / "code"

    @property
    def model(self) -> Path:
        """A model directory made for this run (``model.fromRun``)."""
        return self.path / "model"

    @property
    def lock(self) -> Path:
        """Held by the supervisor and, through it, by its processes."""
        return self.path / "supervisor.lock"


def runs_home(environment: Mapping[str, str]) -> Path:
    """Where runs live: ``ROLLOUT_HOME`` or ``./runs``, absolute."""
    return Path(environment.get("ROLLOUT_HOME") or "runs").absolute()


def create_run_dir(home: Path, name: str) -> RunDir:
    """Make the next ``<name>-<n>``; safe against another process doing the same."""
    home.mkdir(parents=True, exist_ok=True)
    following = max((_number(run.path, name) for run in find_run_dirs(home, name)), default=0) + 1
    for number in range(following, following + RUNS_MAX):
        path = home / f"{name}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return prepare_run_dir(path)
    raise SpecError(f"{home}: more than {RUNS_MAX} runs named {name!r}; remove old ones")


def prepare_run_dir(path: Path) -> RunDir:
    """Make the directory's folders and token where they are missing; idempotent."""
    run = RunDir(path=path.absolute())
    for folder in (run.path, run.objects, run.snapshots, run.logs, run.code):
        folder.mkdir(parents=True, exist_ok=True)
    if not run.token.exists():
        descriptor = os.open(run.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    return run


def find_run_dirs(home: Path, name: str) -> tuple[RunDir, ...]:
    """All runs of this name, oldest first."""
    found = [path for path in home.glob(f"{name}-*") if _number(path, name) and path.is_dir()]
    return tuple(RunDir(path=path) for path in sorted(found, key=lambda path: _number(path, name)))


def find_run_dir(home: Path, name: str, wanted: str) -> RunDir:
    """The run that ``--resume`` means: ``Latest`` is the newest of this name, else a directory's name.

    Raises SpecError that lists what there is.
    """
    runs = tuple(run for run in find_run_dirs(home, name) if run.worker_config.exists())
    if wanted == "Latest" and runs:
        return runs[-1]
    for run in runs:
        if wanted == run.name:
            return run
    known = ", ".join(run.name for run in runs[-5:]) or "none"
    raise SpecError(
        f"--resume {wanted}: no such run of {name!r} in {home} (there: {known}); "
        "start without --resume, or set ROLLOUT_HOME"
    )


def find_run(given: str, home: Path | None = None) -> Path:
    """A run's folder by its path, its directory's name, or its run's name (then the newest one).

    ``home`` None means ``runs_home`` of this process. Raises SpecError when there is none.
    """
    home = runs_home(os.environ) if home is None else home
    for path in (Path(given), home / given):
        if (path / "worker.json").exists():
            return path.absolute()
    named = find_run_dirs(home, given)
    if named:
        return named[-1].path
    raise SpecError(f"no run {given!r}: neither a run's folder nor a run in {home}; see: runs list")


def _number(path: Path, name: str) -> int:
    found = re.fullmatch(rf"{re.escape(name)}-(\d+)", path.name)
    return int(found.group(1)) if found else 0


class RunLock:
    """Ownership of one run directory, from ``acquire`` to ``release``.

    ``fileno`` is passed to child processes: while any of them lives, nobody else gets the lock.
    """

    def __init__(self, run: RunDir) -> None:
        self._path = run.lock
        self._descriptor: int | None = None

    @property
    def fileno(self) -> int:
        """The open lock file. Raises ValueError when the lock is not held."""
        if self._descriptor is None:
            raise ValueError(f"{self._path} is not locked")
        return self._descriptor

    def acquire(self, leftovers_seconds_max: float = LEFTOVERS_SECONDS_MAX) -> None:
        """Take the lock, waiting for the remains of a dead supervisor but never for a living one.

        Raises SpecError naming the process that has it.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + leftovers_seconds_max
        while not _try_lock(descriptor):
            owner = _read_owner(descriptor)
            if is_running(owner) or time.monotonic() > deadline:
                os.close(descriptor)
                raise SpecError(
                    f"{self._path.parent} is in use by process {owner}; stop that run first, "
                    "or start another one"
                )
            time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid()}).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let the lock go; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def find_owner(run: RunDir) -> int | None:
    """The living process that owns a run's directory; None where nobody does."""
    try:
        descriptor = os.open(run.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        owner = _read_owner(descriptor)
    finally:
        os.close(descriptor)
    return owner if is_running(owner) and _holds(owner, run.lock) else None


def _holds(pid: int, path: Path) -> bool:
    """Whether a process has a file open: a number alone may be another's by now. One that hides its files is believed."""
    try:
        return any(link.resolve() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return True
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_owner(descriptor: int) -> int:
    try:
        return int(json.loads(os.pread(descriptor, 4096, 0)).get("pid", 0))
    except (ValueError, AttributeError):
        return 0
