"""Process 1 of a sandbox that holds one server: it puts the files there, starts the program, and watches its bounds.

Read as text by ``rollout.tools.sandbox.bubblewrap``, beside ``inside.py`` whose functions it takes; never imported
outside. The program has the pipes for itself: nothing of ours speaks on them but the first frame, which is read here.
How it ended is this process's exit code. In a sandbox pod ``in_pod.py`` starts it, with other streams, and says how it ended.
"""

from __future__ import annotations

import base64
import ctypes
import os
import resource
import signal
import sys
import time
from typing import Callable

sys.path.insert(0, "/run")
import inside  # pyrefly: ignore[missing-import] - found in the sandbox only

TICK_SECONDS = 0.05
ENDED, MEMORY, FILES, TIME = 81, 82, 83, 84


def main() -> None:
    """Until the program ends or is past a bound."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    given = inside.read_frame()
    ctypes.CDLL(None).prctl(inside.PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    put(given["files"])
    pid = os.fork()
    if pid == 0:
        inside.become(given, given["limits"], (0, 1, 2))
    nothing = os.open("/dev/null", os.O_RDWR)
    for place in (0, 1, 2):
        os.dup2(nothing, place)
    watch(pid, given["limits"])


def put(files: inside.Frame) -> None:
    """The files of the server, in its working folder."""
    for name, data in files.items():
        path = os.path.join("/box", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))


def watch(pid: int, limits: inside.Frame) -> None:
    """Never returns: the exit code says what there was."""
    end(await_end(pid, limits, time.sleep))


def await_end(pid: int, limits: inside.Frame, pause: Callable[[float], object]) -> int:
    """What there was, once the program has ended or is past a bound."""
    until = time.monotonic() + limits["lifetime_seconds"]
    while time.monotonic() < until:
        if inside.reap(pid) is not None:
            return ENDED
        cause = inside.over(limits)
        if cause is not None:
            return MEMORY if cause == "memory" else FILES
        pause(TICK_SECONDS)
    return TIME


def end(code: int) -> None:
    """All that runs here, and this process."""
    inside.end_everything()
    os._exit(code)


if __name__ == "__main__":
    main()
