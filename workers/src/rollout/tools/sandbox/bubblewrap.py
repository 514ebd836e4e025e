"""Sandboxes by bubblewrap: namespaces of their own, an empty environment, no network, two small folders in memory.

Root is dropped before bubblewrap starts: as real root it leaves files under ``/proc/sys`` writable. Process 1 in there
is ``inside.py``; it is forked by ``zygote.py`` in a bubblewrap that all sandboxes of a maker share, or, where the machine
lets nobody make namespaces in there, started in one of its own. Source: bwrap(1) of bubblewrap 0.8; every flag has its test
in ``tests/security``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rollout.errors import InfrastructureError
from rollout.tools.sandbox.arguments import bubblewrap_argv, zygote_argv
from rollout.tools.sandbox.contract import CommandResult, SandboxLimits, check_command
from rollout.tools.sandbox.forked import NotForkedError, Zygote
from rollout.tools.sandbox.host import Host, own_python
from rollout.tools.sandbox.process import (
    ANSWER_SECONDS_MARGIN,
    Conversation,
    SandboxProcess,
    SandboxReady,
    SpawnedProcess,
)
from rollout.tools.sandbox.seccomp import build_filter, machine_calls
from rollout.tools.sandbox.served import LINE_BYTES_MAX, ServedProgram, SpawnedServer, check_files

START_SECONDS_MAX = 60.0
"""How long one may take to come up, on a machine that is busy."""
STARTS_MAX = 4
"""Sandboxes that come up at a time."""
PYTHONS = frozenset({"python", "python3"})

T = TypeVar("T")


class Bubblewrap:
    """Makes sandboxes on this machine. Raises NoSandbox where it cannot keep anything in (``Host.find``).

    ``forks``: process 1 of a sandbox is forked where that can be, rather than started.
    """

    def __init__(self, host: Host | None = None, *, forks: bool = True) -> None:
        self.host = host or Host.find()
        self._filter = build_filter(machine_calls())
        self._forks = forks
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        self.starting = asyncio.Semaphore(STARTS_MAX)

    async def open(self, limits: SandboxLimits) -> BubblewrapSandbox:
        """A fresh sandbox. Raises InfrastructureError where it does not come up."""
        async with self.starting:
            if self._forks:
                try:
                    return await self._fork(limits)
                except NotForkedError:
                    self._forks = False
            process = SpawnedProcess(await self.spawn(limits, "inside.py"))
            sandbox = BubblewrapSandbox(process, limits)
            await come_up(sandbox, sandbox.start())
        return sandbox

    async def _fork(self, limits: SandboxLimits) -> BubblewrapSandbox:
        try:
            process = await self._running_zygote().fork(_said(limits))
        except NotForkedError:
            raise
        except InfrastructureError as error:
            raise InfrastructureError(f"a sandbox did not come up: {error}") from error
        sandbox = BubblewrapSandbox(process, limits)
        await come_up(sandbox, sandbox.be_ready())
        return sandbox

    def _running_zygote(self) -> Zygote:
        with self._lock:
            if self._zygote is None or not self._zygote.is_alive:
                with contextlib.ExitStack() as stack:
                    held = {
                        name: stack.enter_context(_held(_program(name)))
                        for name in ("zygote.py", "inside.py")
                    }
                    argv = zygote_argv(self.host, held)
                    self._zygote = Zygote(argv, tuple(held.values()), self._filter)
            return self._zygote

    async def serve(
        self, argv: tuple[str, ...], files: Mapping[str, bytes], limits: SandboxLimits
    ) -> ServedProgram:
        """A fresh sandbox with one program, which is spoken to line by line; ``files`` lie in its working folder.

        ``argv`` is found in the sandbox's ``PATH``; ``python`` is this process's, with its packages, where the
        sandbox's user may read it, else the sandbox's. Raises InfrastructureError where it does not come up, and
        ValueError for more files than a sandbox takes.
        """
        check_files(files)
        python, folders = own_python(self.host)
        found = (
            "/usr/bin/env",
            *(python if one in PYTHONS else one for one in argv[:1]),
        )
        async with self.starting:
            process = await self.spawn(limits, "serving.py", "inside.py", folders=folders)
        program = ServedProgram(SpawnedServer(process))
        try:
            await program.begin((*found, *argv[1:]), files, limits)
        except BaseException:
            await program.close()
            raise
        return program

    async def spawn(
        self,
        limits: SandboxLimits,
        *programs: str,
        folders: tuple[str, ...] = (),
        links: tuple[tuple[str, str], ...] = (),
        passed: tuple[int, ...] = (),
    ) -> Process:
        """A sandbox whose process 1 is the first of our ``programs``, with the others beside it.

        It sees ``folders`` and ``links`` too, and process 1 has the descriptors ``passed``.
        """
        host = replace(
            self.host,
            folders=(*self.host.folders, *folders),
            links=(*self.host.links, *links),
        )
        with contextlib.ExitStack() as stack:
            seccomp = stack.enter_context(_held(self._filter))
            held = {name: stack.enter_context(_held(_program(name))) for name in programs}
            argv = bubblewrap_argv(host, limits, seccomp=seccomp, programs=held)
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=PIPE,
                    env={},
                    cwd="/",
                    limit=LINE_BYTES_MAX,
                    pass_fds=(seccomp, *held.values(), *passed),
                    start_new_session=True,
                )
            except OSError as error:
                raise InfrastructureError(f"a sandbox could not be started: {error}") from error
        _prefer_for_lack_of_memory(process.pid)
        return process


async def come_up(sandbox: BubblewrapSandbox, starting: Coroutine[Any, Any, None]) -> None:
    """Wait for its process 1; closed where that does not answer. Raises InfrastructureError."""
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            await starting
    except NotForkedError:
        await sandbox.close()
        raise
    except (TimeoutError, InfrastructureError) as error:
        said = await sandbox.end_and_tell()
        why = said or str(error) or f"no answer in {START_SECONDS_MAX:g} s"
        raise InfrastructureError(f"a sandbox did not come up: {why}") from error
    except BaseException:
        await sandbox.close()
        raise


@lru_cache(maxsize=64)
def _said(limits: SandboxLimits) -> bytes:
    return msgspec.json.encode(asdict(limits))


def _program(name: str) -> bytes:
    return resources.files("rollout.tools.sandbox.programs").joinpath(name).read_bytes()


class BubblewrapSandbox:
    """One of them. Commands wait for each other; a call that is cancelled ends the sandbox."""

    def __init__(self, process: SandboxProcess, limits: SandboxLimits) -> None:
        self._process = process
        self._limits = limits
        self._lock = asyncio.Lock()
        self._words = Conversation(
            process.stdout, process.stdin, limits, lambda _: "the sandbox has ended"
        )
        self._closed = False

    @property
    def pid(self) -> int:
        """The process outside; its death is the sandbox's."""
        return self._process.pid

    async def start(self) -> None:
        """Send the limits and wait for process 1."""
        await self.send(asdict(self._limits))
        await self.be_ready()

    async def be_ready(self) -> None:
        """Wait for process 1, which knows the limits."""
        answer = await self.receive(SandboxReady)
        if not answer.ready:
            raise NotForkedError(answer.why)

    async def run(
        self, argv: tuple[str, ...], *, stdin: bytes = b"", seconds: float | None = None
    ) -> CommandResult:
        """As ``Sandbox.run``."""
        check_command(argv, stdin, self._limits)
        allowed = min(self._limits.seconds, seconds or self._limits.seconds)
        request = {"argv": argv, "stdin": stdin, "seconds": allowed}
        async with self._lock:
            if self._closed:
                raise InfrastructureError("this sandbox has ended")
            self._words.count()
            try:
                async with asyncio.timeout(allowed + ANSWER_SECONDS_MARGIN):
                    return await self._words.ask(request)
            except TimeoutError as error:
                await self.close()
                raise InfrastructureError("a sandbox did not answer and was ended") from error
            except BaseException:
                await self.close()
                raise

    async def send(self, message: object) -> None:
        """Say a frame to process 1. Raises InfrastructureError."""
        await self._words.send(message)

    async def receive(self, kind: type[T]) -> T:
        """Process 1's next frame. Raises InfrastructureError."""
        return await self._words.receive(kind)

    async def end_and_tell(self) -> str:
        """End it; what bubblewrap said about why, in one line."""
        await self.close()
        return await self._process.last_words()

    async def close(self) -> None:
        """End everything in it; idempotent."""
        self._closed = True
        self._process.kill()
        await self._process.wait()


@contextlib.contextmanager
def _held(data: bytes) -> Iterator[int]:
    """A descriptor with these bytes, at their beginning."""
    descriptor = os.memfd_create("rollout-sandbox")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _prefer_for_lack_of_memory(pid: int) -> None:
    """Where the machine has no memory left, what the policy started goes first; what it starts later has the same."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")
