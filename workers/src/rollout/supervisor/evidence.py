"""What is kept of a process before it is ended: its stacks and the end of its log, as one file.

``NN-<process>.txt`` of one that did not move, the first EVIDENCE_FILES_MAX of a run; ``<process>-told.txt`` of each
at the last SIGTERM to the run, of TOLD_FILES_MAX processes. Values of variables that look like credentials are masked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout.common.child_processes import Process, ProcessSpec, log_size, log_tail
from rollout.common.stacks import END, ask_for_stacks
from rollout_api.fields.credentials import mask

FOLDER = "evidence"
EVIDENCE_FILES_MAX = 20
TOLD_FILES_MAX = 20
STACK_SECONDS_MAX = 2.0
"""How long processes may take to show their stacks."""
POLL_SECONDS = 0.02
LINES_MAX = 2000
BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A process that can be asked: its name in the run, its log, and what is to be masked in it."""

    name: str
    pid: int
    log: Path
    environment: Mapping[str, str]

    @property
    def folder(self) -> Path:
        """Where its run keeps evidence, beside its logs."""
        return self.log.parent.parent / FOLDER


def witness_of(spec: ProcessSpec, process: Process) -> Witness:
    """The process that was started by this spec."""
    environment = {**os.environ, **spec.env}
    return Witness(name=spec.name, pid=process.pid, log=spec.log, environment=environment)


def keep_stuck(one: Witness, folder: Path) -> Path | None:
    """Ask a process that does not move for its stacks and write them, with the log before them; the file.

    None when the folder is full: the first failures of a run say more than the last ones.
    """
    kept = len(list(folder.glob("[0-9][0-9]-*.txt")))
    if kept >= EVIDENCE_FILES_MAX:
        return None
    _ask([one])
    return _write(one, folder / f"{kept + 1:02d}-{one.name}.txt")


def keep_told(everyone: Sequence[Witness], folder: Path) -> list[Path]:
    """The same of all processes of a run that was told to end; the files, in place of those of an earlier time."""
    asked = everyone[:TOLD_FILES_MAX]
    _ask(asked)
    return [_write(one, folder / f"{one.name}-told.txt") for one in asked]


def tell_of_stuck(one: Witness) -> str:
    """``keep_stuck``, in the run's folder; how the user is told."""
    try:
        file = keep_stuck(one, one.folder)
    except OSError as error:
        return f" (its stacks could not be kept: {error})"
    return f" (where it stood: {file})" if file is not None else ""


def tell_of_all(everyone: Sequence[Witness]) -> str:
    """``keep_told``, in the run's folder; what the user is told."""
    try:
        files = keep_told(everyone, everyone[0].folder) if everyone else []
    except OSError as error:
        return f"where the processes stood could not be kept: {error}"
    return f"where {len(files)} processes stood is kept: {FOLDER}/ in the run's folder"


def _ask(everyone: Sequence[Witness]) -> None:
    """Until each has answered itself, within the bound; what they started writes where it may."""
    starts = {one.pid: log_size(one.log) for one in everyone}
    waiting = [one for one in everyone if one.pid in ask_for_stacks(one.pid)]
    deadline = time.monotonic() + STACK_SECONDS_MAX
    while waiting and time.monotonic() < deadline:
        waiting = [one for one in waiting if f"{END} {one.pid} " not in _tail(one, starts[one.pid])]
        time.sleep(POLL_SECONDS)


def _tail(one: Witness, start: int = 0) -> str:
    return log_tail(one.log, start=start, lines_max=LINES_MAX, bytes_max=BYTES_MAX)


def _write(one: Witness, file: Path) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(mask(_tail(one), one.environment) + "\n")
    return file
