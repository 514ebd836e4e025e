"""Sandbox pods without a cluster: their process 1 in bubblewrap, with the network that a pod has and nothing else closed by us."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator

from rollout.tools.sandbox.host import Host
from rollout.tools.sandbox.pods.program import pod_command
from rollout.tools.sandbox.pods.sandbox import SandboxGrant

LOOPBACK = "127.0.0.1"
FOLDERS = {
    "/dev/shm": 16 << 20,
    "/tmp": 64 << 20,
    "/box": 64 << 20,
    "/tests": 16 << 20,
    "/logs": 16 << 20,
}
"""As the operator renders them, of an agent's pod."""

SILENCE_SECONDS = 60.0


class BoxedPods:
    """A broker whose pods are processes. `lost`: how the next one that is lost is said to have ended."""

    def __init__(self, host: Host, *, past_memory: bool = False) -> None:
        self._host, self._past_memory = host, past_memory
        self._numbers = itertools.count()
        self.processes: dict[str, Process] = {}
        self._ports: dict[str, int] = {}
        self.released: list[tuple[str, bool]] = []

    async def claim(self) -> SandboxGrant:
        port, secret, key = free_port(), os.urandom(32), os.urandom(32)
        name = f"pod-{next(self._numbers)}"
        self._ports[name] = port
        self.processes[name] = await start(self._host, port, secret, key)
        return SandboxGrant(name=name, address=LOOPBACK, port=port, secret=secret, key=key)

    async def release(self, name: str, *, lost: bool) -> bool:
        self.released.append((name, lost))
        process = self.processes[name]
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return lost and self._past_memory

    def kill(self) -> None:
        """End what is left of them, whatever event loop it was started in; nobody answers for them afterwards."""
        for name, process in self.processes.items():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                await_silence(self._ports[name])


@contextlib.asynccontextmanager
async def boxed(host: Host, **how: bool) -> AsyncIterator[BoxedPods]:
    """Such a broker, and the end of its pods."""
    pods = BoxedPods(host, **how)
    try:
        yield pods
    finally:
        for name in pods.processes:
            await pods.release(name, lost=False)


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return one.getsockname()[1]


def await_silence(port: int) -> None:
    """Until nobody listens there: a killed process 1 ends its sandbox a moment later."""
    deadline = time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((LOOPBACK, port), 1).close()
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError(f"somebody still listens at port {port}")


async def start(host: Host, port: int, secret: bytes, key: bytes) -> Process:
    """A pod's process 1."""
    given = {
        "SECRET": secret.hex(),
        "DIGEST": hashlib.sha256(key).hexdigest(),
        "PORT": str(port),
        "USERNS": "true",
    }
    return await begin(host, given)


async def begin(host: Host, given: dict[str, str]) -> Process:
    """A pod's process 1, with the words that a broker gives it."""
    return await asyncio.create_subprocess_exec(
        *argv(host, given), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env={}, cwd="/"
    )


def argv(host: Host, given: dict[str, str]) -> list[str]:
    """As a container's runtime would begin it: its own processes, an image, three folders of a size."""
    drop = [host.setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
    variables = [
        word
        for name, value in given.items()
        for word in ("--setenv", f"ROLLOUT_SANDBOX_{name}", value)
    ]
    folders = (*host.links, ("/app", "box"))
    links = [part for name, target in folders for part in ("--symlink", target, name)]
    binds = [part for folder in host.folders for part in ("--ro-bind", folder, folder)]
    sized = [
        part
        for folder, size in FOLDERS.items()
        for part in ("--size", str(size), "--tmpfs", folder)
    ]
    return [
        *(drop if host.drops_root else []),
        *(host.bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--as-pid-1"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--uid", "65534"),
        *("--gid", "65534", "--clearenv", *variables, *binds, *links),
        *("--proc", "/proc", "--dev", "/dev", *sized, "--chdir", "/box"),
        *("--remount-ro", "/", "--", host.python, *pod_command()[1:]),
    ]
