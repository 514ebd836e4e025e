"""What holds a sandbox outside: its process and the two pipes to it, however it was started."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from typing import Protocol

from rollout.common.child_processes import kill_unread

ERRORS_BYTES_MAX = 4096


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
