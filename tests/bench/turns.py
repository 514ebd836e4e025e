"""The child's half of a duel: it works only while it is told to, and says what each turn cost.

Lines of JSON on the standard output that it was started with; whatever libraries print goes to the
standard error. A child ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Turns:
    """``wait`` ends one turn, reports it, and blocks until the next; the first says only: ready."""

    def __init__(self) -> None:
        self._lines = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._start: tuple[float, float] | None = None

    def wait(self, **facts: Any) -> None:
        """Report the turn that ends here, with ``facts``, and wait to be let go on."""
        self.stop(**facts)
        self.start()

    def stop(self, after: Callable[[], object] = bool, **facts: Any) -> None:
        """Stop the clock, call ``after`` (nobody's time), report."""
        if self._start is not None:
            wall, cpu = self._start
            facts |= {"seconds": time.perf_counter() - wall, "cpu_seconds": cpu_seconds() - cpu}
        after()
        self.say(
            **facts,
            peak_bytes=memory_bytes("VmHWM"),
            now_bytes=memory_bytes("VmRSS"),
            device_peak_bytes=device_peak_bytes(),
        )

    def start(self) -> None:
        """Block until the parent says go; ends the process when the parent is gone."""
        if sys.stdin.readline().strip() != "go":
            os._exit(0)
        self._start = (time.perf_counter(), cpu_seconds())

    def say(self, **facts: Any) -> None:
        """One line to the parent."""
        self._lines.write(json.dumps(facts) + "\n")
        self._lines.flush()


def device_peak_bytes() -> int:
    """The most that this process's tensors have taken of its GPU; 0 without one."""
    torch = sys.modules.get("torch")
    return torch.cuda.max_memory_allocated() if torch and torch.cuda.is_initialized() else 0


def cpu_seconds() -> float:
    """Processor time of all threads of this process, and of children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def memory_bytes(name: str) -> int:
    """``VmHWM`` is the peak of this program's resident memory, ``VmRSS`` what it has now."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
