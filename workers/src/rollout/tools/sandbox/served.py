"""A program in a sandbox that is spoken to line by line, as long as it lives: what it says is bounded while it says it.

A program that writes more than it may is killed. How it ended tells whose doing that was: its own (it ended, or was
past a bound), or the sandbox's, which is nobody's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Literal, Protocol

import msgspec

from rollout.common.child_processes import kill_unread
from rollout.errors import InfrastructureError
from rollout.tools.sandbox.contract import SandboxLimits

LINE_BYTES_MAX = 1 << 20
BYTES_MAX = 4 << 20
"""Of all lines between two calls of ``allow``."""
LINES_MAX = 2000
"""Likewise."""
ERRORS_BYTES_MAX = 16 << 20
"""What it may write for people in its whole life."""
KEPT_BYTES = 4096
FILES_MAX = 512
FILES_BYTES_MAX = 4 << 20
PROCESSOR_SECONDS = 600
END_SECONDS = 2.0
"""How long after its last word the end of a process is waited for."""

Fate = Literal["running", "ended", "memory", "files", "flood", "lost"]
"""``lost``: the sandbox itself."""
_FATES: Mapping[int, Fate] = {81: "ended", 82: "memory", 83: "files"}


def check_files(files: Mapping[str, bytes]) -> None:
    """Raise ValueError for more files than a sandbox takes, and for a name that leaves its folder."""
    size = sum(map(len, files.values()))
    if len(files) > FILES_MAX or size > FILES_BYTES_MAX:
        raise ValueError(
            f"{len(files)} files of {size} bytes: a sandbox takes {FILES_MAX} of {FILES_BYTES_MAX} bytes together"
        )
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
            raise ValueError(f"{name!r}: expected a path below the working folder, without ..")


class ServedProcess(Protocol):
    """What holds it outside, and the streams to it. ``end_seconds``: how long after its last word its end is waited for."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    end_seconds: float

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        ...

    def kill(self) -> None:
        """End everything in there; idempotent."""
        ...

    async def wait(self) -> None:
        """Until it has ended, and nothing is held of it; idempotent."""
        ...


class SpawnedServer:
    """A child of ours that asyncio waits for."""

    end_seconds = END_SECONDS

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @property
    def pid(self) -> int:
        """Its id; its death is the sandbox's."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """As ``ServedProcess.returncode``."""
        return self._process.returncode

    def kill(self) -> None:
        """As ``ServedProcess.kill``."""
        kill_unread(self._process)

    async def wait(self) -> None:
        """As ``ServedProcess.wait``."""
        await self._process.wait()


class ServedProgram:
    """One of them. A single task reads, a single one writes. ``is_silent``: its last word has been read."""

    def __init__(self, process: ServedProcess) -> None:
        self.process = process
        self._num_bytes = self._num_lines = self._num_errors = 0
        self._flooded = False
        self.is_silent = False
        self._last_words = b""
        self._listening = asyncio.create_task(self._listen())

    @property
    def last_words(self) -> str:
        """The last line that it wrote for people."""
        lines = self._last_words.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def begin(
        self, argv: tuple[str, ...], files: Mapping[str, bytes], limits: SandboxLimits
    ) -> None:
        """Send what is to be run. Raises InfrastructureError."""
        given = {
            "argv": argv,
            "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
            "seconds": PROCESSOR_SECONDS,
            "limits": asdict(limits),
        }
        data = msgspec.json.encode(given)
        if not await self._write(len(data).to_bytes(4, "big") + data):
            await self.fate()
            raise InfrastructureError(f"a sandbox did not come up: {self.last_words}")

    def allow(self) -> None:
        """What it says from now on is counted anew."""
        self._num_bytes = self._num_lines = 0

    async def read_line(self) -> bytes:
        """Its next line; empty behind the last one, and when it has said more than it may."""
        stream = self.process.stdout
        try:
            line = await stream.readline()
        except (ValueError, ConnectionError):  # longer than LINE_BYTES_MAX
            line = b""
            await self._flood()
        self._num_bytes += len(line)
        self._num_lines += 1
        if self._num_bytes > BYTES_MAX or self._num_lines > LINES_MAX:
            line = b""
            await self._flood()
        self.is_silent = not line
        return line

    async def write_line(self, data: bytes) -> bool:
        """Say a line to it; False where it does not hear any more."""
        return await self._write(data + b"\n")

    async def fate(self) -> Fate:
        """What has become of it; one that has said its last word is waited for, a moment."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.process.wait()), self.process.end_seconds)
        if self._flooded:
            return "flood"
        code = self.process.returncode
        return "running" if code is None else _FATES.get(code, "lost")

    def kill(self) -> None:
        """End everything in it; idempotent."""
        self.process.kill()

    async def close(self) -> None:
        """End everything in it, and let its pipes go; idempotent. Nobody may be reading."""
        self.kill()
        await self._drain()
        await self.process.wait()
        self.process.stdin.close()
        await asyncio.wait({self._listening}, timeout=END_SECONDS)
        self._listening.cancel()

    async def _write(self, data: bytes) -> bool:
        stream = self.process.stdin
        try:
            stream.write(data)
            await stream.drain()
        except (ConnectionError, OSError):
            return False
        return True

    async def _listen(self) -> None:
        """Take what it writes for people, and keep the end of it."""
        stream = self.process.stderr
        while data := await stream.read(1 << 16):
            self._last_words = (self._last_words + data)[-KEPT_BYTES:]
            self._num_errors += len(data)
            if self._num_errors > ERRORS_BYTES_MAX:
                self._flooded = True
                self.kill()

    async def _flood(self) -> None:
        self._flooded = True
        self.kill()
        await self._drain()

    async def _drain(self) -> None:
        """What the pipe still holds, now that nobody writes: a pipe that is not read to its end is not closed."""
        stream = self.process.stdout
        while await stream.read(1 << 16):
            pass
