"""Cells: folders in which programs run that can be imaged, who is in them, and holding a program between two steps.

One program at a time lives in a cell. Its folder is the same after a restore, as its processes know it by its path.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout.errors import SnapshotRefused, SpecError
from rollout.objects.filesystem import make_folder
from rollout.snapshots.processes import point
from rollout.snapshots.processes.contract import Tree
from rollout.snapshots.processes.init import DUMP, KEEPER, STARTED

CELL, LIVE, WORK = "cell.json", "live", "work"
RUN, RESTORE = "run", "restore"
FOLDER, OF_RUNS = "processes", "runs"
NAME_CHARACTERS_MAX = 63
POLL_SECONDS = 0.005
LOCK_SECONDS_MAX = 1.0
"""Whoever looks whether a lock is held has it for a moment."""
BUSY = {
    LIVE: "runs",
    WORK: "is being imaged or restored",
    point.HOLD: "is being held by another command",
}
HOLD_SECONDS_MAX = 600.0
"""How long a program may take to its next step before no image of it is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell's folder, and the program's name and command."""

    folder: Path
    uid: str
    name: str
    argv: tuple[str, ...]

    @property
    def has_point(self) -> bool:
        """Whether the program has a place where it can be held."""
        return (self.folder / point.READY).exists()

    @property
    def dump(self) -> Path:
        """Where a dump lies while it is made, and CRIU works while it restores."""
        return self.folder / DUMP


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTold:
    """What a program that is held says of its state."""

    digest: str = ""
    step: int = 0


def make_cell(home: Path, name: str, argv: Sequence[str], uid: str | None = None) -> Cell:
    """A cell for a program; ``uid``: that of the image it goes on from. Raises SpecError."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not plain.isalnum() or not plain.isascii() or len(name) > NAME_CHARACTERS_MAX:
        raise SpecError(
            f"--name {name[:80]!r}: expected at most {NAME_CHARACTERS_MAX} letters, digits, - _ ."
        )
    uid = uid or secrets.token_hex(8)
    cell = Cell(folder=home / uid, uid=uid, name=name, argv=tuple(argv))
    make_folder(home)
    cell.folder.mkdir(mode=0o700, exist_ok=True)
    for file in (point.HOLD, LIVE, WORK):
        os.close(os.open(cell.folder / file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    told = {"name": name, "uid": uid, "argv": list(argv)}
    point.write_whole(cell.folder / CELL, json.dumps(told))
    return cell


def list_cells(home: Path) -> list[Cell]:
    """Every cell of a folder, by name; what is none of ours is left out."""
    found = []
    for path in sorted(home.glob(f"*/{CELL}")):
        try:
            said = json.loads(path.read_text())
            argv = tuple(map(str, said["argv"]))
            one = Cell(folder=path.parent, uid=str(said["uid"]), name=str(said["name"]), argv=argv)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if one.uid == path.parent.name:
            found.append(one)
    return sorted(found, key=lambda one: (one.name, one.uid))


def find_live(home: Path, given: str) -> tuple[Cell, Tree]:
    """The program of a name or UID that runs now. Raises SpecError."""
    found = [
        (cell, tree)
        for cell in list_cells(home)
        if given in (cell.name, cell.uid) and (tree := tree_in(cell)) is not None
    ]
    if not found:
        raise SpecError(f"no program {given!r} runs in a cell; see: rollout process list")
    if len(found) > 1:
        uids = ", ".join(cell.uid for cell, _ in found)
        raise SpecError(f"{given!r} is the name of several that run: name one by its UID: {uids}")
    return found[0]


def tree_in(cell: Cell) -> Tree | None:
    """The processes that live in a cell; None where it is empty."""
    if not point.is_locked(cell.folder / LIVE):
        return None
    try:
        keeper = json.loads((cell.folder / KEEPER).read_text())
        started = json.loads((cell.folder / STARTED).read_text())
        return Tree(init=int(keeper["init"]), root=int(started["root"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def locked(cell: Cell, what: str) -> Iterator[None]:
    """Alone with ``LIVE`` (its processes), ``WORK`` (its dump) or the ``point.HOLD`` of a cell; a process that dies lets go.

    Raises SpecError where another has it.
    """
    descriptor = os.open(cell.folder / what, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, cell, what)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def keeper_of(cell: Cell, mode: str, argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The keeper of a cell whose ``LIVE`` is ours; with the block it ends, and all that it keeps."""
    with start_keeper(cell, mode, argv, {point.FOLDER_VARIABLE: str(cell.folder)}) as keeper:
        try:
            yield keeper
        finally:
            keeper.kill()


def start_keeper(
    cell: Cell,
    mode: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    log: Path | None = None,
    keep: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """The keeper of a cell whose ``LIVE`` is the caller's; what is printed goes to ``log``, ``keep`` are descriptors for it.

    ``env`` is added to ours.
    """
    for stale in (KEEPER, STARTED, *(() if mode == RESTORE else (point.READY,))):
        (cell.folder / stale).unlink(missing_ok=True)
    module = "rollout.snapshots.processes.init"
    with contextlib.ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            [sys.executable, "-m", module, str(cell.folder), mode, *argv],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=tuple(keep),
        )


def ask(cell: Cell, keeper: subprocess.Popen[bytes] | None = None) -> StateTold:
    """Have a program that is held tell of its state, at its next point; nothing where it has none.

    Raises SnapshotRefused for one that does not come to it within the bound, or ended.
    """
    if not cell.has_point:
        return StateTold()
    wanted, deadline = secrets.token_hex(16), time.monotonic() + HOLD_SECONDS_MAX
    point.write_whole(cell.folder / point.ASKED, wanted)
    while time.monotonic() < deadline:
        text = point.read_text(cell.folder / point.TOLD)
        said = json.loads(text) if text else {}
        if said.get("asked") == wanted:
            return StateTold(digest=str(said["digest"]), step=int(said["step"]))
        if (keeper is not None and keeper.poll() is not None) or tree_is_over(cell, keeper):
            raise SnapshotRefused(f"{cell.name} ended before it came to its next point")
        time.sleep(POLL_SECONDS)
    raise SnapshotRefused(
        f"{cell.name} did not come to its next point within {HOLD_SECONDS_MAX:.0f} s; it goes on"
    )


def tree_is_over(cell: Cell, keeper: subprocess.Popen[bytes] | None) -> bool:
    """Whether a program that another process keeps is gone."""
    return keeper is None and tree_in(cell) is None


def wait_started(cell: Cell, keeper: subprocess.Popen[bytes], seconds_max: float) -> Tree | None:
    """The processes, once they are there; None where the keeper ended first, or they take too long."""
    deadline = time.monotonic() + seconds_max
    while keeper.poll() is None and time.monotonic() < deadline:
        tree = tree_in(cell)
        if tree is not None:
            return tree
        time.sleep(POLL_SECONDS)
    return None


def fresh_folder(path: Path) -> Path:
    """An empty folder for its owner only, in the place of what a killed process has left."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    return path


def processes_home(home: Path) -> Path:
    """Where cells lie below the folder of runs."""
    return home / FOLDER


def cells_of_runs(home: Path) -> Path:
    """Where the cells of runs' learners lie: a run's image is made and taken up with the run, not by itself."""
    return processes_home(home) / OF_RUNS


def renew(cell: Cell, variables: Mapping[str, str]) -> None:
    """Hand a held program what it is to take in the place of what its image remembers."""
    point.write_whole(cell.folder / point.RENEWED, json.dumps(dict(variables)))


def _lock(descriptor: int, cell: Cell, what: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SpecError(
                    f"{cell.name} ({cell.uid}) {BUSY[what]}: wait for that, or end it"
                ) from None
        time.sleep(POLL_SECONDS)
