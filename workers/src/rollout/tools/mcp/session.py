"""One server in its sandbox, and the protocol's client that speaks to it over the program's lines.

The protocol is the package ``mcp``'s, of both generations (it asks for ``server/discover`` and falls back to the
handshake). Ours are the lines: bounded, and none of them reaches a log. A server that asks for something itself
(sampling, elicitation, roots) is told that nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp_types
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from rollout.tools.sandbox.served import Fate, ServedProgram

for _name in ("mcp", "client"):  # the package's loggers: they would say what servers say
    logging.getLogger(_name).setLevel(logging.CRITICAL)
START_SECONDS_MAX = 60.0
"""From the program's start to its list of tools."""
CLOSE_SECONDS_MAX = 5.0
CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError)
PAGES_MAX = 16
"""Of a list of tools."""


class ServerTrouble(Exception):  # noqa: N818 - what a server did
    """A server did not do what it was asked. ``fate`` says what has become of it, the message what it said."""

    def __init__(self, fate: Fate, message: str) -> None:
        super().__init__(message)
        self.fate: Fate = fate


class McpSession:
    """One server that has been started, until ``close``. Calls wait for each other."""

    def __init__(self, program: ServedProgram) -> None:
        self._program = program
        self._lock = asyncio.Lock()
        self._end = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # The client's scopes must be left by the task that entered them.
        self._owner = asyncio.create_task(self._own())

    async def list_tools(self) -> tuple[mcp_types.Tool, ...]:
        """Every tool that the server has. Raises ServerTrouble."""
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        async with self._asked(START_SECONDS_MAX) as client:
            for _ in range(PAGES_MAX):
                page = await client.list_tools(cursor=cursor, cache_mode="bypass")
                found += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    return tuple(found)
        raise ServerTrouble("running", f"its list of tools has more than {PAGES_MAX} pages")

    async def call(
        self, name: str, arguments: dict[str, Any], seconds: float
    ) -> mcp_types.CallToolResult:
        """What one tool gives. Raises ServerTrouble, TimeoutError."""
        async with self._asked(seconds) as client:
            return await client.call_tool(name, arguments)

    @contextlib.asynccontextmanager
    async def _asked(self, seconds: float) -> AsyncIterator[Client]:
        async with self._lock:
            self._program.allow()
            try:
                async with asyncio.timeout(seconds):
                    yield await asyncio.shield(self._client)
            except (MCPError, ExceptionGroup, *CLOSED) as error:
                raise await self._trouble(str(error)) from error
            except ValidationError as error:
                wrong = error.errors(include_url=False, include_input=False)[0]
                where = ".".join(map(str, wrong["loc"]))
                said = f"it does not keep to the protocol: {where}: {wrong['msg']}"
                raise await self._trouble(said) from error

    async def _trouble(self, said: str) -> ServerTrouble:
        if not self._program.is_silent:
            return ServerTrouble("running", said)
        fate = await self._program.fate()
        return ServerTrouble(fate, self._program.last_words or said)

    async def _own(self) -> None:
        try:
            async with Client(_streams(self._program)) as client:
                self._client.set_result(client)
                await self._end.wait()
        except Exception as error:  # noqa: BLE001 - it is the answer to whoever asks next
            if not self._client.done():
                self._client.set_exception(error)

    async def close(self) -> None:
        """End the server; idempotent."""
        self._end.set()
        self._program.kill()
        await asyncio.wait({self._owner}, timeout=CLOSE_SECONDS_MAX)
        self._owner.cancel()
        await asyncio.wait({self._owner})
        await self._program.close()
        if not self._client.cancel():
            self._client.exception()  # heard


@contextlib.asynccontextmanager
async def _streams(program: ServedProgram) -> AsyncIterator[tuple[Any, Any]]:
    """The two streams that the package's client speaks through."""
    heard_to, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    said, said_from = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with heard_to:
            while line := await program.read_line():
                message = _parse(line)
                if message is not None:
                    await heard_to.send(message)

    async def write() -> None:
        async for message in said_from:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            if not await program.write_line(text.encode()):
                return

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield heard, said
        finally:
            group.cancel_scope.cancel()
            for stream in (heard, said, said_from):
                stream.close()


def _parse(line: bytes) -> SessionMessage | None:
    """A line as a message; None for what is none, such as what a program prints by mistake.

    Schemas of answers are taken out: the client would hold answers against a server's own expressions, in this process.
    """
    try:
        message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return None
    if isinstance(message, mcp_types.JSONRPCResponse):
        tools = message.result.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict):
                tool.pop("outputSchema", None)
    return SessionMessage(message)
