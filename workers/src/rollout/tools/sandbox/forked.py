"""The process that sandboxes are forked from, as it is held outside: one bubblewrap for all of a maker's (``zygote.py``).

It ends when its control socket closes, by our death too, and all its sandboxes with it. Safe from threads and event loops.
Who asks twice for the same limits is taken to ask again: the next sandbox comes up while the one before works.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence

import msgspec

from rollout.errors import InfrastructureError

START_SECONDS_MAX = 60.0
"""How long it may take to come up, on a machine that is busy."""
END_SECONDS = 5.0
SAID_BYTES = 4096
FDINFO_BYTES = 1024


class NotForkedError(InfrastructureError):
    """Namespaces cannot be made below those of a bubblewrap on this machine."""


class Zygote:
    """One of them, started; ``argv`` runs it with the control socket as its standard input."""

    def __init__(self, argv: Sequence[str], held: Sequence[int], seccomp: bytes) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._lock = threading.Lock()
        self._spare: tuple[bytes, socket.socket] | None = None
        self._asked_last: bytes | None = None
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
        try:
            spare = self._take_spare(limits)
            if spare is not None:
                pidfd = await _begin(spare)
                if not _has_ended(pidfd):
                    return await self._hold(spare, pidfd)
                spare.close()
                os.close(pidfd)
            fresh = self._ask(limits)
            return await self._hold(fresh, await _begin(fresh))
        except (OSError, TimeoutError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 1.0)
            raise InfrastructureError(self.last_words or str(error)) from error

    def _ask(self, limits: bytes) -> socket.socket:
        """Our end of the channel of a sandbox that comes up from now on; closed, it ends. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        try:
            with theirs:
                socket.send_fds(self._control, [limits], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def _take_spare(self, limits: bytes) -> socket.socket | None:
        """The one that is kept for these limits, with another in its place. Raises OSError."""
        with self._lock:
            spare, self._spare = self._spare, None
            if limits == self._asked_last:
                self._spare = (limits, self._ask(limits))
            self._asked_last = limits
        if spare is None or spare[0] == limits:
            return spare and spare[1]
        spare[1].close()
        return None

    async def _hold(self, ours: socket.socket, pidfd: int) -> ForkedSandboxProcess:
        return ForkedSandboxProcess(self, pidfd, *await asyncio.open_unix_connection(sock=ours))

    def close(self) -> None:
        """End it, and all sandboxes that it has; idempotent."""
        self._control.close()
        if self._spare is not None:
            self._spare[1].close()
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


async def _begin(ours: socket.socket) -> int:
    """The descriptor of its process 1; the channel is closed where there is none. Raises OSError, TimeoutError."""
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            return await _receive_pidfd(ours)
    except BaseException:
        ours.close()
        raise


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


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
    file = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY)
    try:
        told = os.read(file, FDINFO_BYTES)
    finally:
        os.close(file)
    return int(told.partition(b"\nPid:")[2].split(maxsplit=1)[0])
