"""What holds a sandbox outside: its process, the two streams to it, and what is said over them, however it was started."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from rollout.common.child_processes import kill_unread
from rollout.errors import InfrastructureError
from rollout.tools.sandbox.contract import Cause, CommandResult, SandboxLimits, Stream

ERRORS_BYTES_MAX = 4096
ANSWER_SECONDS_MARGIN = 15.0
"""How long after a command's own limit its answer may come."""
FRAME_BYTES_MAX = 8 << 20
"""As ``inside.py`` takes them."""

T = TypeVar("T")


class StreamAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """One of its streams."""

    head: bytes
    tail: bytes
    num_bytes: int


class CommandAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """Process 1's frame about a command that has ended. ``files`` are the beginnings of those that were asked for."""

    cause: Cause
    code: int
    stdout: StreamAnswer
    stderr: StreamAnswer
    num_left: int
    files: dict[str, bytes] = {}


class SandboxReady(msgspec.Struct, forbid_unknown_fields=True):
    """Process 1's first frame. ``why`` there is no sandbox."""

    ready: bool
    why: str = ""


def as_result(answer: CommandAnswer) -> CommandResult:
    """What process 1 said of a command."""
    return CommandResult(
        cause=answer.cause,
        code=answer.code,
        stdout=Stream(**{name: getattr(answer.stdout, name) for name in Stream.__slots__}),
        stderr=Stream(**{name: getattr(answer.stderr, name) for name in Stream.__slots__}),
        num_left=answer.num_left,
    )


class Conversation:
    """Frames to process 1 and from it, and how many commands it has still to take.

    ``lost`` words what it means that a stream broke.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: SandboxLimits,
        lost: Callable[[Exception], str],
    ) -> None:
        self._reader, self._writer, self._limits, self._lost = reader, writer, limits, lost
        self._num_commands = 0
        self._until = asyncio.get_running_loop().time() + limits.lifetime_seconds

    def count(self) -> None:
        """One more command. Raises ValueError past their number, InfrastructureError past the sandbox's life."""
        self._num_commands += 1
        if self._num_commands > self._limits.commands:
            raise ValueError(f"this sandbox has run its {self._limits.commands} commands")
        if asyncio.get_running_loop().time() > self._until:
            raise InfrastructureError(
                f"this sandbox is older than {self._limits.lifetime_seconds:g} s"
            )

    async def send(self, message: object) -> None:
        """Say a frame. Raises InfrastructureError."""
        await self._write(msgspec.json.encode(message))

    async def ask(self, command: object) -> CommandResult:
        """Have a command run. Raises ValueError for one that is too large, InfrastructureError."""
        data = msgspec.json.encode(command)
        if len(data) > FRAME_BYTES_MAX:
            raise ValueError(
                f"the command has {len(data)} bytes, a sandbox takes {FRAME_BYTES_MAX} at most"
            )
        await self._write(data)
        return as_result(await self.receive(CommandAnswer))

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(len(data).to_bytes(4, "big") + data)
            await self._writer.drain()
        except OSError as error:
            raise InfrastructureError(self._lost(error)) from error

    async def receive(self, kind: type[T]) -> T:
        """The next frame. Raises InfrastructureError."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > 4 * self._limits.output_bytes + (64 << 10):
                raise InfrastructureError(f"the sandbox answered with {size} bytes")
            return msgspec.json.decode(await self._reader.readexactly(size), type=kind)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise InfrastructureError(self._lost(error)) from error
        except msgspec.MsgspecError as error:
            raise InfrastructureError(
                f"the sandbox answered with what is no result: {error}"
            ) from error


class SandboxProcess(Protocol):
    """One of them. Its death is the sandbox's."""

    @property
    def pid(self) -> int:
        """Its id, on this machine."""
        ...

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """What it hears."""
        ...

    @property
    def stdout(self) -> asyncio.StreamReader:
        """What it says."""
        ...

    def kill(self) -> None:
        """SIGKILL; idempotent."""
        ...

    async def wait(self) -> None:
        """Until it has ended; what was held of it is let go. Idempotent."""
        ...

    async def last_words(self) -> str:
        """What was said of why it ended, in one line; after ``wait``."""
        ...


class SpawnedProcess:
    """A child of ours that asyncio waits for."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self.stdin, self.stdout = process.stdin, process.stdout

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, unless its end is known."""
        kill_unread(self._process)

    async def wait(self) -> None:
        """Until it has ended."""
        await self._process.wait()
        self.stdin.close()

    async def last_words(self) -> str:
        """What it wrote for people."""
        stream = self._process.stderr
        assert stream is not None
        try:
            said = await asyncio.wait_for(stream.read(ERRORS_BYTES_MAX), 1.0)
        except TimeoutError:
            return ""
        return " ".join(said.decode(errors="replace").split())
