"""A real gateway over simulated engines, in the test's own loop, at a real port."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import openai
from aiohttp import web
from multidict import CIMultiDictProxy
from simulated_engine import Simulated, start_engine

from rollout.inference.gateway.api import build_gateway
from rollout.inference.gateway.batches.runner import BatchRunner, open_batches
from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.inference.gateway.state import GatewaySettings, GatewayState
from rollout.inference.gateway.table import EndpointTable, EngineReplica, ServedVersion, write_table

WAIT_SECONDS = 60.0


@dataclass
class Served:
    """One gateway. ``engines`` by their sockets' names; ``key`` may do anything."""

    url: str
    key: str
    state: GatewayState
    keys: KeyFile
    table: Path
    folder: Path
    engines: dict[str, Simulated]
    runners: dict[str, web.AppRunner]
    batches: BatchRunner | None
    end: Callable[[], Awaitable[None]]
    """Stop it before its test has ended."""
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)
    """Closed at its end."""

    def headers(self, key: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key or self.key}"}

    async def post(
        self, path: str, body: object, **options: object
    ) -> tuple[int, dict, CIMultiDictProxy]:
        """Status, JSON and headers of one request."""
        async with aiohttp.ClientSession() as session:
            headers = options.pop("headers", None) or self.headers()
            how = {"data": body} if isinstance(body, bytes) else {"json": body}
            async with session.post(self.url + path, headers=headers, **how, **options) as answer:
                return answer.status, await answer.json(), answer.headers

    async def stream(self, body: dict, key: str | None = None) -> bytes:
        """The bytes of a stream."""
        async with aiohttp.ClientSession() as session:
            body = {"stream": True, **body}
            async with session.post(
                self.url + "/v1/chat/completions", headers=self.headers(key), json=body
            ) as answer:
                return await answer.read()

    def new_key(self, expires: float | None = None, **limits: object) -> str:
        return self.keys.create("a test's", KeyLimits(**limits), now=time.time(), expires=expires)

    def serve(self, **versions: tuple[str, ...]) -> None:
        """Write a table: versions by name, each with the sockets of its engines."""
        write_table(self.table, build_table(self.folder, versions))


def build_table(
    folder: Path,
    versions: dict[str, tuple[str, ...]],
    slots: int = 4,
    aliases=None,
    task: str = "generate",
) -> EndpointTable:
    return EndpointTable(
        versions=tuple(
            ServedVersion(
                name=name,
                digest=f"blake3:{name}",
                engine="vllm",
                salted=True,
                task=task,
                created=1,
                replicas=tuple(
                    EngineReplica(name=one, socket=str(folder / f"{one}.sock"), slots=slots)
                    for one in sockets
                ),
            )
            for name, sockets in versions.items()
        ),
        aliases=aliases or {},
    )


TASKS = {"text": "generate", "vectors": "embed", "scores": "score"}
"""Models of one simulated engine, and what they do."""


def write_tasks(table: Path, engine: Path) -> None:
    """A table of three models, of one task each, which one engine answers."""
    versions = tuple(
        ServedVersion(
            name=name,
            digest=f"blake3:{name}",
            engine="vllm",
            task=task,
            created=1,
            replicas=(EngineReplica(name=name, socket=str(engine), slots=1000),),
        )
        for name, task in TASKS.items()
    )
    write_table(table, EndpointTable(versions=versions))


@asynccontextmanager
async def gateways() -> AsyncIterator[Callable]:
    """What starts gateways over simulated engines, and ends them: ``await start(m=("a", "b"), settings={...})``."""
    async with AsyncExitStack() as stack:

        async def start(
            slots: int = 4, aliases=None, settings=None, task="generate", **versions
        ) -> Served:
            versions = versions or {"m": ("a",)}
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gw-")))
            names = [name for sockets in versions.values() for name in sockets]
            engines = {name: Simulated() for name in names}
            runners = {
                name: await start_engine(engines[name], str(folder / f"{name}.sock"))
                for name in names
            }
            for runner in runners.values():
                stack.push_async_callback(runner.cleanup)
            write_table(folder / "table.json", build_table(folder, versions, slots, aliases, task))
            keys = KeyFile(Path((settings or {}).get("keys", folder / "keys")))
            key = keys.create("all", KeyLimits(), now=time.time(), expires=None)
            state = GatewayState(
                GatewaySettings(
                    host="127.0.0.1",
                    table=str(folder / "table.json"),
                    admin="",
                    **{"port": 0, "keys": str(keys.path.parent), **(settings or {})},
                )
            )
            batches = open_batches(state)
            await state.refresh()
            runner = web.AppRunner(
                build_gateway(state, batches),
                handler_cancellation=True,
                access_log=None,
                shutdown_timeout=0.1,
            )
            await runner.setup()
            listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
            await web.SockSite(runner, listening).start()
            duties = [asyncio.create_task(state.keep()), asyncio.create_task(state.watch_health())]

            if batches is not None:
                duties.append(asyncio.create_task(batches.run()))

            async def end() -> None:
                for duty in duties:
                    duty.cancel()
                for client in served.clients:
                    await client.close()
                await runner.cleanup()
                if batches is not None:
                    await batches.close()
                await state.close()

            stack.push_async_callback(end)
            await until(lambda: all(pool.ready for pool in state.pools), "an engine")
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            served = Served(
                url=url,
                key=key,
                state=state,
                keys=keys,
                table=folder / "table.json",
                folder=folder,
                engines=engines,
                runners=runners,
                batches=batches,
                end=end,
            )
            return served

        yield start


async def until(holds: Callable[[], object], what: str = "it") -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        await asyncio.sleep(0.01)


def chat(text: str, model: str = "m", **fields: object) -> dict:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}
