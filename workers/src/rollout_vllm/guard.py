"""A process that keeps a server's process group from outliving its owner. Standard library only.

The actor starts this file as the leader of a new session; this file starts the server in that
group. When the server ends, when the owner dies (``kill -9`` included) or closes our standard input,
or on SIGTERM, the whole group is asked to end, waited for up to a bound, then killed. As a subreaper
it inherits what the server leaves behind: vLLM's engine process does not end with its parent.

Usage: ``python -I guard.py OWNER_PID GRACE_SECONDS COMMAND...``. Exits with the server's code.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
OWNER_GONE = 75
"""Exit status when the server was ended because its owner went away or asked for it."""

prctl = ctypes.CDLL(None, use_errno=True).prctl


class StopSignal:
    """Whether somebody asked us to stop; the handler also shields us from our own group signal."""

    def __init__(self) -> None:
        self.asked = False
        faulthandler.register(
            signal.SIGUSR1, all_threads=True
        )  # whoever asks all of us ends nobody
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def run_guard(owner_pid: int, grace_seconds: float, command: list[str]) -> int:
    """Run ``command`` until it or its owner ends; leave nothing of the process group behind.

    Returns the command's exit code (negative: its signal), or OWNER_GONE.
    """
    assert os.getpgrp() == os.getpid(), "start the guard with start_new_session=True"
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    stop = StopSignal()
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 - no threads here
    )
    while server.poll() is None and not stop.asked and wait_while_owned(owner_pid):
        pass
    code = server.poll()
    end_group(grace_seconds)
    return OWNER_GONE if code is None else code


def wait_while_owned(owner_pid: int) -> bool:
    """Wait one poll interval; False at once when the owner's end of our standard input closes."""
    ready, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
    closed = bool(ready) and not os.read(sys.stdin.fileno(), 1)
    return not closed and os.getppid() == owner_pid


def end_group(grace_seconds: float) -> None:
    """SIGTERM to the group, a bounded wait, then SIGKILL to what is left; returns when all are gone."""
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while has_children():
        if time.monotonic() > deadline:
            kill_others()
        time.sleep(POLL_SECONDS / 10)


def kill_others() -> None:
    """SIGKILL to our group and our children, not to ourselves: somebody must see the last one go."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):
            _state, parent, group = (process / "stat").read_bytes().rpartition(b")")[2].split()[:3]
            if os.getpid() in {int(parent), int(group)}:
                os.kill(int(process.name), signal.SIGKILL)


def has_children() -> bool:
    """Collect what has ended; whether anything is still running."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(run_guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
