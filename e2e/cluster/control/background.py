"""Work that goes on beside other work, and ends with whoever started it: also the tools that it runs.

A compiler or a package manager that is left behind would take the machine from the next command. Whoever started
the work ends it with TERM; where that one was killed, the kernel sends it.
"""

import ctypes
import os
import signal
import sys
import time
from types import FrameType

import psutil

NICENESS = 19
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.05
PR_SET_PDEATHSIG = 1


def step_back() -> None:
    """Make this process the leader of a group that is last in turn and that ends, whole, on TERM."""
    starter = os.getppid()
    os.setsid()
    os.nice(NICENESS)
    signal.signal(signal.SIGTERM, _end_group)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:  # gone before the kernel was told
        os.kill(os.getpid(), signal.SIGTERM)


def _end_group(_number: int, _frame: FrameType | None) -> None:
    """Let every tool of the group put its files down, for a moment; then nothing of it is left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while psutil.Process().children(recursive=True) and time.monotonic() < deadline:
        _reap()
        time.sleep(POLL_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return  # none is left
