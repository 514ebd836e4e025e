"""Sandbox pods for programs that are spoken to line by line: each has two connections for itself beside that to process 1."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Mapping

import msgspec

from rollout.errors import InfrastructureError
from rollout.tools.sandbox.bubblewrap import PYTHONS
from rollout.tools.sandbox.contract import SandboxLimits
from rollout.tools.sandbox.pods.agents import PYTHON
from rollout.tools.sandbox.pods.program import pod_filters
from rollout.tools.sandbox.pods.sandbox import DIAL_SECONDS_MAX, PodSandbox, PodSandboxes, dial
from rollout.tools.sandbox.served import (
    LINE_BYTES_MAX,
    PROCESSOR_SECONDS,
    ServedProgram,
    check_files,
)

END_SECONDS = 15.0
"""How long it may take to be known how a pod ended."""
PAST_MEMORY, KILLED = 82, -9
"""As process 1 says it of its program, and as of a process that was killed."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ServerEnd(msgspec.Struct, forbid_unknown_fields=True):
    """Process 1's frame about the end of its program, in the codes of ``serving.py``."""

    ended: int


async def serve_in_pod(
    maker: PodSandboxes, argv: tuple[str, ...], files: Mapping[str, bytes], limits: SandboxLimits
) -> ServedProgram:
    """A fresh pod with one program. Raises InfrastructureError, SpecError, ValueError for more files than a sandbox takes."""
    check_files(files)
    first = tuple(PYTHON if one in PYTHONS else one for one in argv[:1])
    server = {
        "argv": ("/usr/bin/env", *first, *argv[1:]),
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
        "seconds": PROCESSOR_SECONDS,
    }
    maker.require_room(limits)
    sandbox = await maker.begin(limits, {"filters": pod_filters(), "server": server})
    try:
        async with asyncio.timeout(DIAL_SECONDS_MAX):
            speech, errors = await _lane(sandbox), await _lane(sandbox)
    except BaseException as error:
        await sandbox.close()
        if isinstance(error, OSError | TimeoutError):
            name = sandbox.grant.name
            raise InfrastructureError(f"sandbox pod {name} does not serve: {error}") from error
        raise
    return ServedProgram(PodServer(sandbox, speech, errors))


async def _lane(sandbox: PodSandbox) -> Streams:
    lane = await dial(sandbox.grant)
    return await asyncio.open_connection(sock=lane, limit=LINE_BYTES_MAX)


class PodServer:
    """A program in a pod, as ``ServedProcess``."""

    end_seconds = END_SECONDS

    def __init__(self, sandbox: PodSandbox, speech: Streams, errors: Streams) -> None:
        self._sandbox = sandbox
        self.stdout, self.stdin = speech
        self.stderr, self._errors = errors
        self._killed = False
        self.returncode: int | None = None
        self._ending = asyncio.create_task(self._hear())

    def kill(self) -> None:
        """As ``ServedProcess.kill``: a pod ends with its caller's connection."""
        self._killed = True
        self._sandbox.hang_up()
        self.stdin.close()
        self._errors.close()

    async def wait(self) -> None:
        """As ``ServedProcess.wait``."""
        await asyncio.shield(self._ending)

    async def _hear(self) -> None:
        """How it ends, and then the end of its pod."""
        try:
            code = (await self._sandbox.receive(ServerEnd)).ended
        except InfrastructureError:
            past_memory = not self._killed and await self._sandbox.was_past_memory()
            code = PAST_MEMORY if past_memory else KILLED
        with contextlib.suppress(InfrastructureError):  # the broker finds it by its age
            await self._sandbox.close()
        self.returncode = code
