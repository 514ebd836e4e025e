"""A server as a source of tools: asked for them once a process, started once an episode, at the first call.

What an episode's server does is data as the sandbox's other programs' doing is: an answer that does not come, is too
long, or a server that ends is told to the policy, and the next call gets a fresh server that has forgotten all. A
server whose tools are not those that were listed is refused: they stand in the prompt. A sandbox that is lost is
infrastructure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rollout.errors import InfrastructureError, SpecError
from rollout.tools.contract import Tool, ToolAnswer, ToolTraits
from rollout.tools.foreign import PARTED
from rollout.tools.mcp.listing import answer_text, check_arguments, read_specs
from rollout.tools.mcp.session import START_SECONDS_MAX, McpSession, ServerTrouble
from rollout.tools.sandbox.contract import SandboxLimits
from rollout.tools.sandbox.served import Fate, ServedProgram
from rollout.turns import ToolSpec
from rollout.types import Row

CALL_SECONDS_MAX = 30.0
SECONDS_MARGIN = START_SECONDS_MAX + 30.0
"""For a server to come up, beside the call itself."""
STARTS_MAX = 4
"""Servers of one episode."""
AFRESH = "the next call gets a fresh server, which has forgotten all"

T = TypeVar("T")
_listed: dict[ServerProgram, tuple[ToolSpec, ...]] = {}
"""Of this process: a run has few servers."""
_WHY: Mapping[Fate, str] = {
    "ended": "the server has ended",
    "memory": "the server used more memory than its sandbox has",
    "files": "the server made more files than its sandbox has",
    "flood": "the server said more than is taken",
}


class ProgramMaker(Protocol):
    """Makes sandboxes for servers."""

    async def serve(
        self, argv: tuple[str, ...], files: Mapping[str, bytes], limits: SandboxLimits
    ) -> ServedProgram:
        """A fresh sandbox with one program. Raises InfrastructureError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProgram:
    """What is run: a server's name, its command, and the files that it sees beside the system's, by path."""

    name: str
    command: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()


class McpSource:
    """The tools of one server. ``maker`` is asked for when the first is needed."""

    def __init__(self, program: ServerProgram, maker: Callable[[], ProgramMaker]) -> None:
        self.program = program
        self._maker = maker

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the policy will see; the server is started and asked, once a process. Raises SpecError, NoSandbox."""
        if self.program not in _listed:
            _listed[self.program] = _list_now(self.program, self._maker())
        return _listed[self.program]

    def know(self, specs: tuple[ToolSpec, ...]) -> None:
        """Another process has asked this server: it is not asked again here."""
        _listed[self.program] = specs

    def open(self, row: Row) -> tuple[Tool, ...]:
        """The tools of one episode, which share one server."""
        del row
        server = EpisodeServer(self.program, self._maker, self.specs)
        return tuple(McpTool(spec, server) for spec in self.specs)


@dataclass(frozen=True, slots=True, eq=False)
class McpTool:
    """One tool in one episode."""

    spec: ToolSpec
    server: EpisodeServer

    @property
    def traits(self) -> ToolTraits:
        """A server may remember what it was asked: no tool of one is pure."""
        return ToolTraits(seconds=CALL_SECONDS_MAX + SECONDS_MARGIN)

    async def call(self, arguments: Mapping[str, Any], key: str) -> ToolAnswer:
        """Ask the server. Raises ToolMistake for arguments of another form, InfrastructureError, SpecError."""
        del key
        check_arguments(self.spec.parameters, arguments)
        return await self.server.call(self.spec.name.partition(PARTED)[2], dict(arguments))

    async def close(self) -> None:
        """End the server of the episode."""
        await self.server.close()


class EpisodeServer:
    """The server of one episode, started when it is needed."""

    def __init__(
        self,
        program: ServerProgram,
        maker: Callable[[], ProgramMaker],
        specs: tuple[ToolSpec, ...],
    ) -> None:
        self._program, self._maker, self._specs = program, maker, specs
        self._session: McpSession | None = None
        self._num_started = 0

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """What a tool gives, or why it gives nothing. Raises InfrastructureError, and SpecError for other tools than listed."""
        if self._session is None and self._num_started == STARTS_MAX:
            text = f"error: the server was started {STARTS_MAX} times and is not started again"
            return ToolAnswer(text=text, is_error=True)
        session = await self._started()
        try:
            result = await session.call(name, arguments, CALL_SECONDS_MAX)
        except TimeoutError:
            await self.close()
            text = f"error: no answer within {CALL_SECONDS_MAX:g} s; {AFRESH}"
            return ToolAnswer(text=text, is_error=True, signals={"tool_timeouts": 1})
        except ServerTrouble as trouble:
            return await self._answer_trouble(trouble)
        except BaseException:
            await self.close()
            raise
        return ToolAnswer(text=answer_text(result), is_error=bool(result.is_error))

    async def _started(self) -> McpSession:
        if self._session is not None:
            return self._session
        self._num_started += 1
        session, specs = await _open(self._program, self._maker())
        self._session = session
        changed = {spec.name for spec in set_apart(self._specs, specs)}
        if changed:
            await self.close()
            raise SpecError(
                f"MCP server {self._program.name}: {', '.join(sorted(changed))} is not what the run was planned with"
                " (name, description or arguments changed): a server must say the same of its tools every time"
            )
        return session

    async def _answer_trouble(self, trouble: ServerTrouble) -> ToolAnswer:
        if trouble.fate == "running":
            return ToolAnswer(text=f"error: {trouble}", is_error=True)
        await self.close()
        if trouble.fate == "lost":
            raise InfrastructureError(
                f"the sandbox of MCP server {self._program.name} has ended: {trouble}"
            )
        return ToolAnswer(text=f"error: {_WHY[trouble.fate]}; {AFRESH}", is_error=True)

    async def close(self) -> None:
        """End it; the next call gets a fresh one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def set_apart(these: tuple[ToolSpec, ...], those: tuple[ToolSpec, ...]) -> list[ToolSpec]:
    """The tools that only one side has, as the policy would see them."""
    left = {spec.digest: spec for spec in these}
    right = {spec.digest: spec for spec in those}
    return [
        *(left[one] for one in left.keys() - right),
        *(right[one] for one in right.keys() - left),
    ]


async def _open(
    program: ServerProgram, maker: ProgramMaker
) -> tuple[McpSession, tuple[ToolSpec, ...]]:
    """A fresh server and what it says of its tools. Raises InfrastructureError, and SpecError for what no prompt could have."""
    served = await maker.serve(program.command, dict(program.files), SandboxLimits())
    session = McpSession(served)
    try:
        return session, read_specs(program.name, await session.list_tools())
    except TimeoutError as error:
        await session.close()
        why = f"it did not list its tools in {START_SECONDS_MAX:g} s"
        raise InfrastructureError(f"MCP server {program.name}: {why}") from error
    except ServerTrouble as trouble:
        await session.close()
        why = f"{_WHY.get(trouble.fate, 'it did not list its tools')}: {trouble}"
        raise InfrastructureError(f"MCP server {program.name}: {why}") from trouble
    except ValueError as error:
        await session.close()
        raise SpecError(f"environment.mcpServers: {program.name}: {error}") from error
    except BaseException:
        await session.close()
        raise


def _list_now(program: ServerProgram, maker: ProgramMaker) -> tuple[ToolSpec, ...]:
    """What a server says of its tools. Raises SpecError: there is no run without it."""
    try:
        return _run_apart(lambda: _list(program, maker))
    except InfrastructureError as error:
        command = " ".join(program.command)
        raise SpecError(
            f"environment.mcpServers: {error} (command: {command}); it runs in a sandbox without network, with the"
            " system's programs and the files that `files` names"
        ) from error


async def _list(program: ServerProgram, maker: ProgramMaker) -> tuple[ToolSpec, ...]:
    session, specs = await _open(program, maker)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(session.close(), START_SECONDS_MAX)
    return specs


def _run_apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """``asyncio.run`` in a thread of its own: whoever asks may be in a loop."""
    with ThreadPoolExecutor(1, "mcp") as executor:
        return executor.submit(lambda: asyncio.run(work())).result()
