"""Real coordinator processes over fake rows (``fake_run.py``), and what they have spent."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fake_run import GROUPS, SAMPLES

END_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A coordinator that was started; it may not listen yet."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """Of the process so far, to the nanosecond: the kernel's own clock of it."""
        return time.clock_gettime((~self.pid << 3) | 2)


@contextmanager
def run_coordinator(
    folder: Path, groups: int = GROUPS, samples: int = SAMPLES
) -> Iterator[Running]:
    """One over the ledger in ``folder``; ended on the way out."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = str(Path(__file__).with_name("fake_run.py"))
    words = [str(folder), str(port), str(groups), str(samples)]
    process = subprocess.Popen([sys.executable, script, *words])
    try:
        yield Running(url=f"http://127.0.0.1:{port}", pid=process.pid)
    finally:
        process.terminate()
        process.wait(END_SECONDS_MAX)
