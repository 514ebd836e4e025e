"""The gateway as a child of ours: started, asked how it is over its private socket, drained and ended."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import httpx
import msgspec

from rollout.common.child_processes import (
    ProcessSpec,
    end_processes,
    log_tail,
    start_process,
)
from rollout.errors import CoordinatorError
from rollout.inference.gateway.state import GatewaySettings

MODULE = "rollout.entrypoints.serving.gateway"
ASK_SECONDS_MAX = 5.0
GRACE_SECONDS = 5.0


class VersionState(msgspec.Struct, frozen=True):
    """How the gateway sees one version: whether an engine answers, and requests that are open."""

    ready: bool
    open: int
    retired: bool


class GatewayStatus(msgspec.Struct, frozen=True):
    """What the gateway says of itself; ``sockets`` are those of engines that it may still ask, or has asked."""

    ready: bool
    open: int
    versions: dict[str, VersionState]
    sockets: list[str]


class GatewayProcess:
    """A running gateway. ``table`` and ``keys`` are files that it reads again when they change."""

    def __init__(self, settings: GatewaySettings, log: Path) -> None:
        self._settings = settings
        self._log = log
        self._folder = Path(tempfile.mkdtemp(prefix="rollout-"))
        config = self._folder / "gateway.json"
        admin = str(self._folder / "admin.sock")
        config.write_bytes(msgspec.json.encode(msgspec.structs.replace(settings, admin=admin)))
        spec = ProcessSpec(
            name="gateway",
            role="gateway",
            module=MODULE,
            arguments=("--config", str(config)),
            log=log,
        )
        self._process = start_process(spec)
        transport = httpx.HTTPTransport(uds=admin)
        self._client = httpx.Client(transport=transport, base_url="http://gateway", trust_env=False)

    def status(self) -> GatewayStatus | None:
        """What it says now; None while it comes up. Raises CoordinatorError when it has ended."""
        code = self._process.poll()
        if code is not None:
            raise CoordinatorError(f"the gateway ended with code {code}: {log_tail(self._log)}")
        try:
            answer = self._client.get("/status", timeout=ASK_SECONDS_MAX)
        except httpx.HTTPError:
            return None
        return msgspec.json.decode(answer.content, type=GatewayStatus)

    def begin_drain(self) -> None:
        """Have it take no more and end when all open requests have."""
        if self._process.poll() is None:
            self._process.terminate()

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Drain it, and end it where that takes too long. Idempotent."""
        seconds = self._settings.leave_seconds + self._settings.drain_seconds
        end_processes([self._process], grace_seconds=seconds + GRACE_SECONDS)
        self._client.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End it now."""
        end_processes([self._process], grace_seconds=0.0, ask=False)
