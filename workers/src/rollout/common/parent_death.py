"""Ties a process to its parent, so that nothing outlives a supervisor that was killed.

``python -m rollout.common.parent_death --parent PID MODULE ARG...`` ties itself and then runs the module as
``python -m MODULE ARG...`` would. On Linux the kernel does it (``PR_SET_PDEATHSIG``, prctl(2)): the
tie is to the *thread* that forked and is not inherited, so each process that starts others ties
them itself. Elsewhere a thread watches the parent's id. Imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
WATCH_SECONDS = 1.0
ENTRYPOINTS = "rollout.entrypoints."
"""These modules call ``collect_from_here`` once they are imported."""


def die_with_parent(parent: int | None = None) -> None:
    """Be killed (SIGKILL) when the parent dies; exit now when it is already gone.

    ``parent`` is the id that started this process; None takes the present parent's.
    """
    expected = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(expected,), daemon=True).start()
    if os.getppid() != expected:
        os._exit(1)


def collect_from_here() -> None:
    """Collect garbage again after the imports, whose objects stay and need no look."""
    gc.freeze()
    gc.enable()


def tied_argv(module: str, *arguments: str, parent: int | None = None) -> tuple[str, ...]:
    """The command that runs a module tied to the process that starts it."""
    tie = () if parent is None else ("--parent", str(parent))
    return (sys.executable, "-m", "rollout.common.parent_death", *tie, module, *arguments)


def main(argv: Sequence[str]) -> None:
    """Tie, then become the module."""
    rest = list(argv)
    parent = None
    if rest[:1] == ["--parent"]:
        parent = int(rest[1])
        rest = rest[2:]
    die_with_parent(parent)
    sys.argv = ["", *rest[1:]]
    if rest[0].startswith(ENTRYPOINTS):
        gc.disable()  # importing torch and transformers makes a million objects and no garbage
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)


def _watch(expected: int) -> None:
    while os.getppid() == expected:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
