"""Runs a plugin and leaves nothing of it behind: ``python -I -S keeper.py HOST_PID MEMORY_BYTES COMMAND...``.

Read as a file and run with the standard library alone. Its standard input is held by whoever asked for the plugin, the host:
when that closes, or the host is gone, or SIGTERM comes, the plugin gets SIGTERM, and what it started is killed five seconds
later, in whatever session it stands. Its exit code is the plugin's.

It stands in a session of its own, so that what ends a whole process group (Ctrl-C, ``timeout``, a job's end) does not end it
before it has swept. It is two processes, each of which sweeps where the other is killed; a plugin whose both are is killed
by the kernel.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 5.0
LOOK_SECONDS = 0.05
HOST_LOOK_SECONDS = 1.0
SAID_BYTES_MAX = 1 << 20
"""Of what a plugin prints, at most so much is kept, the latest."""
PASSED_BY = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main() -> int:
    """Fork the one that runs the plugin, wait for it, and sweep what it left."""
    host, memory_bytes, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for one in PASSED_BY:
        signal.signal(one, signal.SIG_IGN)
    _adopt_orphans()
    lives, alive = os.pipe()
    runner = os.fork()
    if runner == 0:
        os.close(lives)
        os.setsid()
        return _run(memory_bytes, command)
    os.close(alive)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(runner, signal.SIGTERM))
    while not select.select([lives], [], [], HOST_LOOK_SECONDS)[0]:
        if os.getppid() != host:
            os.kill(runner, signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _, status = os.waitpid(runner, 0)
    _sweep()
    return _exit_code(os.waitstatus_to_exitcode(status))


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _run(memory_bytes: int, command: list[str]) -> int:
    """Start the plugin, wait for either end, and sweep."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    _adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    try:
        plugin = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - no threads here
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    assert plugin.stdout is not None
    try:
        return _watch(plugin, plugin.stdout.fileno(), told)
    finally:
        _sweep()


def _die_with_parent() -> None:
    """In the plugin's process: SIGKILL once its parent, which has one thread, is killed; signals as a program expects them."""
    for one in PASSED_BY:
        signal.signal(one, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(plugin: subprocess.Popen[bytes], said: int, told: list[int]) -> int:
    """Its exit code, once it has ended: by itself, at SIGTERM when our standard input has closed or we were told, or killed after that."""
    heard = {sys.stdin.fileno(), said}
    until = float("inf")
    while plugin.poll() is None:
        readable, _, _ = select.select(list(heard), [], [], LOOK_SECONDS)
        if said in readable and not _note(said):
            heard.discard(said)
        if sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 1):
            heard.discard(sys.stdin.fileno())
            told.append(0)
        if told and until == float("inf"):
            plugin.terminate()
            until = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > until:
            plugin.kill()
    while said in heard and select.select([said], [], [], 0)[0] and _note(said):
        continue
    return _exit_code(plugin.returncode)


def _exit_code(code: int) -> int:
    """As a shell gives it."""
    return code if code >= 0 else 128 - code


def _note(said: int) -> int:
    """Write down what the plugin says next, its latest words over its first; how many bytes it was."""
    words = os.read(said, SAID_BYTES_MAX // 16)
    if os.lseek(1, 0, os.SEEK_CUR) + len(words) > SAID_BYTES_MAX:
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)
    os.write(1, words)
    return len(words)


def _sweep() -> None:
    """Kill what is left below this process, and wait for it."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(LOOK_SECONDS)


def _children() -> Iterator[int]:
    """Children of this process; orphans below it are, too."""
    for path in Path("/proc/self/task").glob("*/children"):
        yield from map(int, path.read_text().split())


if __name__ == "__main__":
    sys.exit(main())
