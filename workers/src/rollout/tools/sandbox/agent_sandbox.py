"""A sandbox for a program that owns its loop: its only way out is a door, at an address of its own loopback.

What connects to it in there is answered by this process; the sandbox has no network beside it. In bubblewrap the door is a
listening socket that is made inside and handed out. Commands run one after the other, each with files that are put there
before it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol, TypeVar

from rollout.errors import InfrastructureError
from rollout.tools.sandbox.bubblewrap import PYTHONS, Bubblewrap, BubblewrapSandbox, come_up
from rollout.tools.sandbox.contract import CommandResult, SandboxLimits
from rollout.tools.sandbox.host import own_python
from rollout.tools.sandbox.process import (
    ANSWER_SECONDS_MARGIN,
    CommandAnswer,
    SandboxReady,
    SpawnedProcess,
    as_result,
)

T = TypeVar("T")

PORT = 8000
TESTS, LOGS = "/tmp/.tests", "/tmp/.logs"  # noqa: S108 - in the sandbox
LINKS = (("/tests", TESTS[1:]), ("/logs", LOGS[1:]), ("/app", "box"))
"""Names and targets: where tasks in Harbor's form look for their folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """One command. ``files`` by absolute path, below ``/box`` or one of ``emptied``, folders that are made anew.

    ``read`` are files whose beginnings come back; ``seconds`` of wall clock, ``processor_seconds`` of each process.
    """

    argv: tuple[str, ...]
    seconds: float
    processor_seconds: float
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    emptied: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


Answering = Callable[[], asyncio.Protocol]
"""Makes what answers one connection."""


class AgentDoor(Protocol):
    """Where a sandbox's program comes to be answered."""

    async def serve(self, answering: Answering) -> None:
        """Answer what connects, until ``close``."""
        ...

    def close(self) -> None:
        """Answer nothing more that connects; idempotent."""
        ...


class ListeningDoor:
    """A listening socket."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._server: asyncio.Server | None = None

    async def serve(self, answering: Answering) -> None:
        """As ``AgentDoor.serve``."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(answering, sock=self._listening)

    def close(self) -> None:
        """As ``AgentDoor.close``."""
        if self._server is not None:
            self._server.close()
        self._listening.close()


class Hosting(Protocol):
    """What speaks to the process 1 that holds an agent."""

    async def send(self, message: object) -> None:
        """Say a frame. Raises InfrastructureError."""
        ...

    async def receive(self, kind: type[T]) -> T:
        """The next frame. Raises InfrastructureError."""
        ...

    async def close(self) -> None:
        """End everything in there; idempotent."""
        ...


class AgentSandbox:
    """One of them. ``python``: what is run for a command of that name. A single task runs commands."""

    def __init__(self, inner: Hosting, python: str, door: AgentDoor) -> None:
        self._inner, self._python = inner, python
        self.door = door

    async def run(self, command: AgentCommand) -> tuple[CommandResult, Mapping[str, bytes]]:
        """What became of a command, and the files that were asked for. Raises InfrastructureError.

        ``python`` is in bubblewrap this process's, with its packages, where the sandbox's user may read it; in a pod its image's.
        """
        first = self._python if command.argv[0] in PYTHONS else command.argv[0]
        await self._inner.send(
            {
                "argv": ("/usr/bin/env", first, *command.argv[1:]),
                "stdin": command.stdin,
                "seconds": command.seconds,
                "processor_seconds": command.processor_seconds,
                "environment": command.environment,
                "files": dict(command.files),
                "emptied": command.emptied,
                "read": command.read,
            }
        )
        try:
            seconds = command.seconds + ANSWER_SECONDS_MARGIN
            answer = await asyncio.wait_for(self._inner.receive(CommandAnswer), seconds)
        except TimeoutError as error:
            raise InfrastructureError("a sandbox did not answer") from error
        return as_result(answer), answer.files

    async def stop(self) -> None:
        """End the command that runs, and all that it started; ``run`` then says so. Raises InfrastructureError."""
        await self._inner.send({"stop": True})

    async def close(self) -> None:
        """End everything in it, and close its door; idempotent."""
        await self._inner.close()
        self.door.close()


async def open_agent_sandbox(maker: Bubblewrap, limits: SandboxLimits) -> AgentSandbox:
    """A fresh one. Raises InfrastructureError where it does not come up."""
    python, folders = own_python(maker.host)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            descriptor = theirs.fileno()
            async with maker.starting:
                process = await maker.spawn(
                    limits,
                    "hosting.py",
                    "inside.py",
                    folders=folders,
                    links=LINKS,
                    passed=(descriptor,),
                )
        inner = BubblewrapSandbox(SpawnedProcess(process), limits)
        await come_up(inner, _start(inner, limits, descriptor))
        try:
            _, found, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_DONTWAIT)
        except OSError as error:
            await inner.close()
            raise InfrastructureError(f"a sandbox gave no door: {error}") from error
    return AgentSandbox(inner, python, ListeningDoor(socket.socket(fileno=found[0])))


async def _start(inner: BubblewrapSandbox, limits: SandboxLimits, descriptor: int) -> None:
    await inner.send({**asdict(limits), "door": {"descriptor": descriptor, "port": PORT}})
    await inner.receive(SandboxReady)
