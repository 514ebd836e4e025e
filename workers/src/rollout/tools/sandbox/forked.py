"""The process that sandboxes are forked from, as it is held outside: one bubblewrap for all of a maker's (``zygote.py``).

It ends when its control socket closes, by our death too, and all its sandboxes with it. Safe from threads and event loops.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollout.errors import InfrastructureError

START_SECONDS_MAX = 60.0
"""How long it may take to come up, on a machine that is busy."""
END_SECONDS = 5.0
SAID_BYTES = 4096


class NotForkedError(InfrastructureError):
    """Namespaces cannot be made below those of a bubblewrap on this machine."""


class Zygote:
    """One of them, started; ``argv`` runs it with the control socket as its standard input."""

    def __init__(self, argv: Sequence[str], held: Sequence[int], seccomp: bytes) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        with theirs:
            self._process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env={},
                cwd="/",
                pass_fds=held,
                start_new_session=True,
            )
        steps = base64.b64encode(seccomp).decode()
        with contextlib.suppress(OSError):  # one that has ended is found where it is asked
            self._control.send(msgspec.json.encode({"filter": steps}))

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """What bubblewrap said, in one line."""
        words = os.pread(self._said.fileno(), SAID_BYTES, 0)
        return " ".join(words.decode(errors="replace").split())

    async def fork(self, limits: bytes) -> ForkedSandboxProcess:
        """Process 1 of a sandbox, which has heard its limits as JSON. Raises InfrastructureError."""
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        try:
            with theirs:
                socket.send_fds(self._control, [limits], [theirs.fileno()])
            pidfd = await asyncio.wait_for(_receive_pidfd(ours), START_SECONDS_MAX)
            return ForkedSandboxProcess(self, pidfd, *await asyncio.open_unix_connection(sock=ours))
        except (OSError, TimeoutError) as error:
            ours.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 1.0)
            raise InfrastructureError(self.last_words or str(error)) from error
        except BaseException:
            ours.close()
            raise

    def close(self) -> None:
        """End it, and all sandboxes that it has; idempotent."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __del__(self) -> None:
        """A maker that is thrown away takes it along; a sandbox that is open keeps it."""
        if hasattr(self, "_process"):
            self.close()


class ForkedSandboxProcess:
    """Process 1 of a sandbox, by its descriptor: another process cannot be meant."""

    def __init__(
        self,
        zygote: Zygote,
        pidfd: int,
        stdout: asyncio.StreamReader,
        stdin: asyncio.StreamWriter,
    ) -> None:
        self._zygote, self._pidfd = zygote, pidfd
        self.stdout, self.stdin = stdout, stdin
        self.pid = _pid_of(pidfd)

    def kill(self) -> None:
        """SIGKILL; what runs in its namespace ends with it."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> None:
        """Until it has ended, with all that was in there; nothing is held of it then."""
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            try:
                await _readable(pidfd)
            finally:
                os.close(pidfd)
        self.stdin.close()

    async def last_words(self) -> str:
        """What it said of why it did not come up."""
        return "" if self._zygote.is_alive else self._zygote.last_words


async def _receive_pidfd(channel: socket.socket) -> int:
    await _readable(channel.fileno())
    said, found, _, _ = socket.recv_fds(channel, 1, 1)
    if said == b"+" and found:
        return found[0]
    if said == b"-":
        told = channel.recv(SAID_BYTES)[4:]
        raise NotForkedError(msgspec.json.decode(told)["why"])
    raise OSError("it ended as it was asked for a sandbox")


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _pid_of(pidfd: int) -> int:
    told = Path(f"/proc/self/fdinfo/{pidfd}").read_text("ascii")
    return next(int(line.split()[1]) for line in told.splitlines() if line.startswith("Pid:"))
