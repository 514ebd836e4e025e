"""Which of a run's learners on one machine is the one: whoever holds the lock of a file in the run's folder.

The kernel lets go of it when its holder dies, whatever it died of, and gives it to one other. Nobody has to notice a
death or to name a successor. The lock is the process's own (fcntl(2)): what it forks does not keep it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

SEAT_VARIABLE = "ROLLOUT_LEARNER_SEAT"
"""Set where a run has two learners: the name of the process, of whose ranks the first takes the seat."""
FILE_NAME = "learner.seat"
NAME_BYTES_MAX = 256


class LearnerSeat:
    """The place of a run's learner, as one process sees it that may take it; ``name`` is how others know the process."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self._name = name
        self._descriptor = os.open(
            run_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )

    def take(self) -> bool:
        """Whether it is ours from now on, until this process ends. Does not wait."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, self._name.encode()[:NAME_BYTES_MAX], 0)
        return True


def find_seat(run_dir: Path, environment: Mapping[str, str]) -> LearnerSeat | None:
    """The seat of a run with two learners; None where there is one."""
    name = environment.get(SEAT_VARIABLE, "")
    return LearnerSeat(run_dir, name) if name else None


def read_holder(run_dir: Path) -> str:
    """The name of the process that took the seat last; empty when nobody has yet."""
    try:
        with (run_dir / FILE_NAME).open("rb") as file:
            return file.read(NAME_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        return ""
