"""Runs the author's code in a fork, and leaves nothing of it behind.

The guard itself imports none of that code. It stays between the fork and whoever asked: when that end of the
line closes, or the fork ends, everything that the fork started is killed, in whatever session it stands.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 24, 36, 38
_CAPABILITIES_V3 = 0x20080522
CAPABILITIES_MAX = 64
_OF_FILES = frozenset(range(5))
"""CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID: whose files root may use."""
LOOK_SECONDS = 0.5
"""Between two looks at a fork where the kernel does not say that it ended."""
SWEEP_SECONDS_MAX = 5.0


def guard(line: int, work: Callable[[], None]) -> int:
    """Fork, have the fork ``work``, and end with it; its exit code. ``line``: closed by whoever asked for it."""
    adopt()
    pid = os.fork()
    if pid == 0:
        _be_the_fork(work)
    try:
        return _wait(pid, line)
    finally:
        sweep()


def hide_memory() -> None:
    """Let no process of the same user read this one's memory and environment (``/proc/<pid>``, ptrace)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def drop_rights() -> None:
    """Give up every capability but those about files, for good: root is then no more than an owner of files.

    What hides its memory from others of its user is hidden from such a root, too.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.geteuid() != 0:
        return
    for number in range(CAPABILITIES_MAX):
        if number not in _OF_FILES:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    kept = sum(1 << number for number in _OF_FILES)
    libc.capset(
        (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    )


def bound_memory(memory_bytes_max: int) -> None:
    """Bound what this process, and each that it starts, may allocate; no core is ever written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the kernel knows the limit and does not keep it
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes_max, memory_bytes_max))


def adopt() -> None:
    """Become the parent of what this process's descendants leave behind, so that they are found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _be_the_fork(work: Callable[[], None]) -> None:
    code = 1
    try:
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - the outermost frame of a fork: what is above it is the guard's
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, line: int) -> int:
    """The fork's exit code; that of a killed one where the line was closed first."""
    watcher = select.poll()
    watcher.register(line, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    if ended >= 0:
        watcher.register(ended, select.POLLIN)
    while True:
        events = watcher.poll(None if ended >= 0 else LOOK_SECONDS * 1000)
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == pid:
            return _code(status)
        if any(descriptor == line for descriptor, _ in events):
            os.kill(pid, signal.SIGKILL)
            return _code(os.waitpid(pid, 0)[1])


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def sweep() -> None:
    """Kill all descendants of this process and wait for them."""
    import psutil

    me = psutil.Process()
    deadline = time.monotonic() + SWEEP_SECONDS_MAX
    while time.monotonic() < deadline:
        left = me.children(recursive=True)
        if not left:
            return
        for one in left:
            try:
                one.kill()
            except psutil.Error:
                continue  # it ended first
        psutil.wait_procs(left, timeout=0.1)
