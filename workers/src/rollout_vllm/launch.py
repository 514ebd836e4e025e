"""The engine container's command: ``python3 -m rollout_vllm.launch FOLDER``. Standard library only.

``--check FOLDER`` is for a probe: it exits with 0 when the server answers.

Waits for the actor, in the same pod, to write ``start.json`` into the shared folder, and runs the server
that it describes. A changed file ends the server and starts the next one; a server that ends by itself
ends this process with its code, for the kubelet to restart. Nothing listens but a socket in the folder.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rollout_vllm.guard import StopSignal

START_FILE = "start.json"
WAIT_SECONDS_MAX = 900.0
GRACE_SECONDS = 10.0
POLL_SECONDS = 0.25
CHECK = "--check"
CHECK_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to run. ``incarnation`` grows when the actor wants another server."""

    incarnation: int
    arguments: tuple[str, ...]
    environment: dict[str, str]


def main() -> int:
    """Run servers until told to stop; the exit code."""
    if sys.argv[1] == CHECK:
        return 0 if answers(Path(sys.argv[2])) else 1
    folder, stop = Path(sys.argv[1]), StopSignal()
    start = wait_for_start(folder, stop)
    while start is not None and not stop.asked:
        server = spawn(start)
        while server.poll() is None and not stop.asked and read_start(folder) == start:
            time.sleep(POLL_SECONDS)
        code = server.poll()
        end_server(server)
        if code is not None:
            return code
        start = read_start(folder)
    return 0 if stop.asked else 1


def answers(folder: Path) -> bool:
    """Whether the server that was asked for says that it is healthy (for a probe of the kubelet)."""
    start = read_start(folder)
    if start is None:
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CHECK_SECONDS_MAX)
        try:
            connection.connect(socket_of(start))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: vllm\r\nConnection: close\r\n\r\n")
            return b" 200 " in connection.recv(32)
        except OSError:
            return False


def socket_of(start: Start) -> str:
    """Where the server listens."""
    return start.arguments[start.arguments.index("--uds") + 1]


def wait_for_start(folder: Path, stop: StopSignal) -> Start | None:
    """The actor's wish; None when it did not come within the bound, or when we are to stop."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not stop.asked and time.monotonic() < deadline:
        found = read_start(folder)
        if found is not None:
            return found
        time.sleep(POLL_SECONDS)
    if not stop.asked:
        sys.stderr.write(f"no actor wrote {folder / START_FILE} in {WAIT_SECONDS_MAX:.0f} s\n")
    return None


def read_start(folder: Path) -> Start | None:
    """What the file says; None where there is none."""
    try:
        said = json.loads((folder / START_FILE).read_text())
    except FileNotFoundError:
        return None
    return Start(
        incarnation=int(said["incarnation"]),
        arguments=tuple(said["arguments"]),
        environment=dict(said["environment"]),
    )


def spawn(start: Start) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own; a socket that an older one left is removed."""
    Path(socket_of(start)).unlink(missing_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *start.arguments],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **start.environment},
        start_new_session=True,
    )


def end_server(server: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, a bounded wait, SIGKILL to what is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + GRACE_SECONDS
        while _group_lives(server) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    server.wait(GRACE_SECONDS)


def _group_lives(server: subprocess.Popen[bytes]) -> bool:
    server.poll()
    try:
        os.killpg(server.pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
