"""One vLLM server: its processes, its private folder and the only client that can reach it.

Knows nothing of versions or samples. A server that failed to answer, or answered with an error of its
own, is ``broken`` for good: whoever owns it stops it and starts another.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import httpx

import rollout_vllm.guard
from rollout.engines.vllm.attached import AttachedProcess, ask_for_server
from rollout.engines.vllm.command import VllmSettings, build_command, socket_path
from rollout.engines.vllm.plugin import place_plugin
from rollout.errors import EngineError, VersionRefused
from rollout_vllm.gate import CONFLICT, HEADER

GUARD = Path(rollout_vllm.guard.__file__)
HEALTH_POLL_SECONDS = 0.25
CONNECT_SECONDS_MAX = 5.0
KEEP_ALIVE_SECONDS = 2.0
"""Below the server's own limit, so that no request is sent on a connection it is just closing."""
LOG_TAIL_LINES = 12
LOG_TAIL_BYTES = 8192
KILL_SECONDS_MAX = 5.0


class GuardedProcess:
    """A command under ``rollout_vllm.guard``: it and all it starts end when we stop it, or when we die."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        log_path: Path,
        work_dir: Path,
        grace_seconds: float,
    ) -> None:
        self.log_path = log_path
        self._grace_seconds = grace_seconds
        log_path.parent.mkdir(parents=True, exist_ok=True)
        guard = (sys.executable, "-I", str(GUARD), str(os.getpid()), str(grace_seconds))
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                cwd=work_dir,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the guard, which is also the process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while running."""
        return self._process.poll()

    def stop(self) -> None:
        """End the whole group: SIGTERM, the grace period, SIGKILL. Blocks; idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self._grace_seconds + KILL_SECONDS_MAX)
        if self._process.returncode is None or self._process.returncode < 0:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(KILL_SECONDS_MAX)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def log_tail(self) -> str:
        """The last lines that the command wrote, for error messages."""
        with self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


class ServerProcess(Protocol):
    """The processes of a server."""

    log_path: Path

    @property
    def pid(self) -> int:
        """The process group; 0 where we cannot see it."""
        ...

    @property
    def exit_code(self) -> int | None:
        """None while running."""
        ...

    def stop(self) -> None:
        """End it, where that is ours to do. Blocks; idempotent."""
        ...

    def log_tail(self) -> str:
        """The last that it said, for error messages."""
        ...


class VllmServer:
    """A started server. Use ``start_server``; then ``call`` until ``broken``, then ``stop``."""

    def __init__(self, settings: VllmSettings, private_dir: Path, process: ServerProcess) -> None:
        self.broken = False
        self._settings = settings
        self.private_dir = private_dir
        self._process = process
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(socket_path(private_dir)),
                limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS),
            ),
            base_url="http://vllm",
            trust_env=False,
        )

    @property
    def pid(self) -> int:
        """Process group of everything this server runs."""
        return self._process.pid

    @property
    def healthy(self) -> bool:
        """Whether it may be asked for more."""
        return not self.broken and self._process.exit_code is None

    async def call(
        self,
        path: str,
        *,
        seconds_max: float,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, str] | None = None,
        version: str | None = None,
    ) -> bytes:
        """POST and return the answer's body. Raises EngineError, and is then broken unless we were refused.

        ``version``: the label that the version gate asks for (``rollout_vllm.gate``).
        """
        try:
            response = await self._client.post(
                path,
                json=body,
                params=parameters,
                headers=None if version is None else {HEADER: version},
                timeout=httpx.Timeout(seconds_max, connect=CONNECT_SECONDS_MAX),
            )
        except httpx.HTTPError as error:
            self.broken = True
            raise EngineError(self._describe(f"did not answer {path} ({error!r})")) from error
        if response.is_success:
            return response.content
        # For good: what a later call meets says nothing of what broke.
        self.broken = self.broken or response.is_server_error
        if response.status_code == CONFLICT:
            raise VersionRefused(self._describe(f"serves another version: {response.text[:500]}"))
        raise EngineError(
            self._describe(f"answered {path} with {response.status_code}: {response.text[:500]}")
        )

    async def wait_healthy(self) -> None:
        """Poll until it serves. Raises EngineError when it ends first or the start-up bound passes."""
        bound = self._settings.start_seconds_max
        try:
            async with asyncio.timeout(bound):
                while not await self._serves():  # noqa: ASYNC110 - another process changes it
                    await asyncio.sleep(HEALTH_POLL_SECONDS)
        except TimeoutError as error:
            raise EngineError(self._describe(f"was not up within {bound:g} s")) from error

    async def stop(self) -> None:
        """End the processes, then remove the private folder, where they are ours. Idempotent."""
        self.broken = True
        await asyncio.to_thread(self._process.stop)
        await self._client.aclose()
        if self._settings.engine_dir is None:
            await asyncio.to_thread(shutil.rmtree, self.private_dir, ignore_errors=True)

    async def _serves(self) -> bool:
        code = self._process.exit_code
        if code is not None:
            raise EngineError(self._describe(f"ended with code {code} while starting"))
        try:
            response = await self._client.get("/health", timeout=CONNECT_SECONDS_MAX)
        except httpx.HTTPError:
            return False
        return response.is_success

    def _describe(self, what: str) -> str:
        return f"vLLM {what}; see {self._process.log_path}, which ends:\n{self._process.log_tail()}"


async def start_server(settings: VllmSettings, *, fresh: bool = False) -> VllmServer:
    """Start a server and wait until it serves. Raises EngineError; then nothing of ours is left.

    ``fresh``: one that was there before must not be used (``vllm_attached``).
    """
    server = _attach(settings, fresh=fresh) if settings.engine_dir else _start(settings)
    try:
        await server.wait_healthy()
    except BaseException:
        await server.stop()
        raise
    return server


def _attach(settings: VllmSettings, *, fresh: bool) -> VllmServer:
    assert settings.engine_dir is not None
    work_dir = ask_for_server(settings, settings.engine_dir, fresh=fresh)
    return VllmServer(settings, work_dir, AttachedProcess(settings.engine_dir))


def _start(settings: VllmSettings) -> VllmServer:
    private_dir = Path(tempfile.mkdtemp(prefix="rollout-"))
    try:
        argv, env = build_command(settings, private_dir)
        place_plugin(private_dir / "plugin")
        paths = (str(private_dir / "plugin"), os.environ.get("PYTHONPATH", ""))
        process = GuardedProcess(
            argv,
            {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            log_path=settings.log_path,
            work_dir=private_dir,
            grace_seconds=settings.stop_seconds_max,
        )
        return VllmServer(settings, private_dir, process)
    except BaseException:
        shutil.rmtree(private_dir, ignore_errors=True)
        raise
