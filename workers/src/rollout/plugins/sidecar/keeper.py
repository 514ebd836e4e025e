"""Runs a plugin and leaves nothing of it behind: ``python -I -S keeper.py MEMORY_BYTES COMMAND...``.

Read as a file and run with the standard library alone. Its standard input is held by whoever asked for the plugin: when
that closes, by death too, the plugin gets SIGTERM, and what it started is killed five seconds later, in whatever session it
stands. Its exit code is the plugin's.
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

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5.0
LOOK_SECONDS = 0.05
SAID_BYTES_MAX = 1 << 20
"""Of what a plugin prints, at most so much is kept, the latest."""


def main() -> int:
    """Start the plugin, wait for either end, and sweep."""
    memory_bytes, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    assert plugin.stdout is not None
    try:
        return _watch(plugin, plugin.stdout.fileno())
    finally:
        _sweep()


def _watch(plugin: subprocess.Popen[bytes], said: int) -> int:
    """Its exit code, once it has ended: by itself, at SIGTERM when our standard input has closed, or killed after that."""
    heard = {sys.stdin.fileno(), said}
    until = float("inf")
    while plugin.poll() is None:
        readable, _, _ = select.select(list(heard), [], [], LOOK_SECONDS)
        if said in readable and not _note(said):
            heard.discard(said)
        if sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 1):
            heard.discard(sys.stdin.fileno())
            plugin.terminate()
            until = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > until:
            plugin.kill()
    while said in heard and select.select([said], [], [], 0)[0] and _note(said):
        continue
    return plugin.returncode if plugin.returncode >= 0 else 128 - plugin.returncode


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
