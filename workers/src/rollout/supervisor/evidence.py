"""What is kept of a process before it is ended for not moving: its stacks and the end of its log, as one file.

Values of variables that look like credentials are masked. At most EVIDENCE_FILES_MAX files a run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rollout.common.child_processes import log_size, log_tail
from rollout.common.stacks import END, ask_for_stacks
from rollout_api.credentials import mask

FOLDER = "evidence"
EVIDENCE_FILES_MAX = 20
STACK_SECONDS_MAX = 2.0
"""How long a process may take to show its stacks."""
POLL_SECONDS = 0.02
LINES_MAX = 2000
BYTES_MAX = 1 << 20


def keep_evidence(
    name: str, pid: int, log: Path, folder: Path, environment: Mapping[str, str]
) -> Path | None:
    """Ask a process for its stacks and write them, with the log before them, to ``folder``; the file.

    None when the folder is full: the first failures of a run say more than the last ones.
    """
    folder.mkdir(exist_ok=True)
    kept = len(list(folder.iterdir()))
    if kept >= EVIDENCE_FILES_MAX:
        return None
    _wait_for_stacks(pid, log)
    text = log_tail(log, lines_max=LINES_MAX, bytes_max=BYTES_MAX)
    file = folder / f"{kept + 1:02d}-{name}.txt"
    file.write_text(mask(text, environment) + "\n")
    return file


def _wait_for_stacks(pid: int, log: Path) -> None:
    """Until the process itself has answered; what it started writes where it may."""
    start = log_size(log)
    answering = pid in ask_for_stacks(pid)
    deadline = time.monotonic() + STACK_SECONDS_MAX
    while answering and time.monotonic() < deadline:
        if f"{END} {pid} " in log_tail(log, start=start, lines_max=LINES_MAX, bytes_max=BYTES_MAX):
            return
        time.sleep(POLL_SECONDS)
