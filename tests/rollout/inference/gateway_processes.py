"""A gateway and simulated engines as processes of their own, for load: what a test or a bench drives from outside."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
from gateway_kit import build_table

from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.inference.gateway.state import GatewaySettings
from rollout.inference.gateway.table import write_table

ENGINE = Path(__file__).with_name("simulated_engine.py")
START_SECONDS = 120.0
CHAT = "/v1/chat/completions"
MODEL = re.compile(rb'"model":"([^"]*)"')


@dataclass(frozen=True)
class Running:
    """The processes. ``url`` is the gateway's, ``sockets`` those of the engines; ``folder``: where they and the table lie."""

    url: str
    key: str
    gateway: subprocess.Popen
    engines: list[subprocess.Popen]
    sockets: list[Path]
    folder: Path

    def serve(self, slots: int = 100_000, aliases=None, **versions: tuple[str, ...]) -> None:
        """Write a table: versions by name, each with the names of its engines."""
        write_table(
            self.folder / "table.json", build_table(self.folder, versions, slots, aliases or {})
        )

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}


@contextmanager
def processes(
    num_engines: int = 1, *, slots: int = 100_000, core: int | None = None, **settings: object
) -> Iterator[Running]:
    """Start them and wait until they answer. ``core``: the gateway's alone, the engines have the others."""
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="gw-") as place:
        folder = Path(place)
        names = [f"e{i}" for i in range(num_engines)]
        sockets = [folder / f"{name}.sock" for name in names]
        write_table(folder / "table.json", build_table(folder, {"m": tuple(names)}, slots))
        key = KeyFile(folder / "keys").create("load", KeyLimits(), now=time.time(), expires=None)
        port = free_port()
        config = folder / "gateway.json"
        config.write_bytes(
            msgspec.json.encode(
                GatewaySettings(
                    host="127.0.0.1",
                    port=port,
                    table=str(folder / "table.json"),
                    keys=str(folder / "keys"),
                    admin=str(folder / "admin.sock"),
                    **settings,
                )
            )
        )
        engines = [start_python([str(ENGINE), str(one)], folder / "engine.log") for one in sockets]
        gateway = start_python(
            ["-m", "rollout.entrypoints.serving.gateway", "--config", str(config)],
            folder / "gateway.log",
        )
        if core is not None:
            _pin(gateway, engines, core)
        try:
            running = Running(
                url=f"http://127.0.0.1:{port}",
                key=key,
                gateway=gateway,
                engines=engines,
                sockets=sockets,
                folder=folder,
            )
            wait_ready(running.url, gateway, folder / "gateway.log")
            yield running
        finally:
            for one in (gateway, *engines):
                one.kill()
                one.wait()


@dataclass
class StreamOutcome:
    """One stream as its client met it."""

    status: int = 0
    events: int = 0
    done: bool = False
    error: str = ""
    version: str = ""
    models: set[bytes] = field(default_factory=set)
    """What its events name, where that is looked at."""


async def read_stream(
    session: aiohttp.ClientSession,
    url: str,
    body: bytes,
    begun: asyncio.Event | None = None,
    *,
    looks: bool = False,
) -> StreamOutcome:
    """Read one stream to its end, without looking into events; ``looks``: at the models that they name."""
    found, tail = StreamOutcome(), b""
    async with session.post(url + CHAT, data=body) as answer:
        found.status = answer.status
        found.version = answer.headers.get("X-Rollout-Model-Version", "")
        async for data in answer.content.iter_any():
            found.events += data.count(b"data: ")
            if looks:
                found.models.update(MODEL.findall(tail + data))
            tail = (tail + data)[-600:]
            if begun is not None:
                begun.set()
    found.done = tail.endswith(b"data: [DONE]\n\n")
    found.error = tail.decode(errors="replace") if b'{"error"' in tail else ""
    return found


def session_for(running: Running) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers=running.headers(),
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    )


def stream_body(text: str, model: str = "m") -> bytes:
    return json.dumps(
        {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}
    ).encode()


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def start_python(arguments: Sequence[str], log: Path) -> subprocess.Popen:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as out:
        return subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=out, env=env)


def _pin(gateway: subprocess.Popen, engines: Sequence[subprocess.Popen], core: int) -> None:
    others = os.sched_getaffinity(0) - {core} or {core}
    os.sched_setaffinity(gateway.pid, {core})
    for one in engines:
        os.sched_setaffinity(one.pid, others)
    os.sched_setaffinity(0, others)


def wait_ready(url: str, process: subprocess.Popen, log: Path) -> None:
    """Until it answers ``/readyz``."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url + "/readyz", timeout=30):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
