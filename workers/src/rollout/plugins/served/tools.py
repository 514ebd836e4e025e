"""Typed functions as the tools of a plugin, or the public methods of a class, of which each episode has an object of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from google.protobuf.message import Message as Frame

from rollout.errors import InfrastructureError, SpecError
from rollout.plugins.served.answers import EPISODES_MAX, LEASE_SECONDS, Methods, told_failure
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.wire import told_tool
from rollout.tools.contract import ToolAnswer, ToolMistake
from rollout.tools.functions import FunctionTool
from rollout.turns import ToolSpec


@dataclass(slots=True)
class _Episode:
    """What the calls of one episode share. ``answers`` by call id: what is asked twice is done once."""

    tools: Mapping[str, FunctionTool]
    close: Callable[[], Any] | None
    heard: float
    answers: dict[str, asyncio.Task[contract.CallResponse]] = field(default_factory=dict)


class ToolService:
    """``given``: a function, several, or a class that is constructed with the row and the parameters."""

    def __init__(self, given: Any) -> None:
        self._class = given if isinstance(given, type) else None
        functions: Sequence[Callable[..., Any]] = (
            [] if self._class else list(given) if isinstance(given, list | tuple) else [given]
        )
        self._shared = {tool.spec.name: tool for tool in map(FunctionTool, functions)}
        self._parameters: dict[str, str] = {}
        self._open: dict[str, _Episode] = {}

    @property
    def methods(self) -> Methods:
        """What is served."""
        return {
            "List": (self._list, contract.ListRequest),
            "Call": (self._call, contract.CallRequest),
            "Close": (self._close, contract.CloseRequest),
        }

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Keep them for the episodes. Raises SpecError for functions, which take what the policy gives, and for wrong types."""
        if parameters and self._class is None:
            raise SpecError("functions take no parameters: serve a class, whose methods are tools")
        self._parameters = dict(parameters)
        self._specs()

    def _specs(self) -> list[ToolSpec]:
        if self._class is None:
            return [tool.spec for tool in self._shared.values()]
        nobody = object()
        return [
            FunctionTool(MethodType(method, nobody)).spec
            for method in _public(self._class).values()
        ]

    async def _list(self, _: Any) -> Frame:
        return contract.ListResponse(tools=[told_tool(spec) for spec in self._specs()])

    async def _call(self, request: contract.CallRequest) -> Frame:
        await self._forget()
        try:
            episode = await self._episode(request)
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything: it is the answer
            return contract.CallResponse(failure=told_failure(error))
        episode.heard = time.monotonic()
        if request.call_id not in episode.answers:
            work = asyncio.create_task(_answer(episode, request))
            episode.answers[request.call_id] = work
        return await asyncio.shield(episode.answers[request.call_id])

    async def _episode(self, request: contract.CallRequest) -> _Episode:
        if request.episode in self._open:
            return self._open[request.episode]
        if len(self._open) >= EPISODES_MAX:
            raise InfrastructureError(f"{len(self._open)} episodes are open")
        made = _Episode(tools=self._shared, close=None, heard=time.monotonic())
        if self._class is not None:
            row = json.loads(request.row_json)
            its = await asyncio.to_thread(lambda: self._made(row))
            tools = {name: FunctionTool(getattr(its, name)) for name in _public(self._class)}
            made = _Episode(tools=tools, close=getattr(its, "close", None), heard=time.monotonic())
        return self._open.setdefault(request.episode, made)

    def _made(self, row: Any) -> Any:
        assert self._class is not None
        return self._class(row, **self._parameters)

    async def _close(self, request: contract.CloseRequest) -> Frame:
        await self._leave(request.episode)
        return contract.CloseResponse()

    async def _leave(self, name: str) -> None:
        episode = self._open.pop(name, None)
        if episode is not None and episode.close is not None:
            await asyncio.to_thread(episode.close)

    async def _forget(self) -> None:
        """Close what nothing was heard of for too long."""
        before = time.monotonic() - LEASE_SECONDS
        for name in [name for name, one in self._open.items() if one.heard < before]:
            await self._leave(name)


def _public(given: type) -> dict[str, Callable[..., Any]]:
    """Methods that are tools: those without an underscore before their name, ``close`` left out."""
    found = inspect.getmembers(given, inspect.isfunction)
    return {name: one for name, one in found if not name.startswith("_") and name != "close"}


async def _answer(episode: _Episode, request: contract.CallRequest) -> contract.CallResponse:
    try:
        tool = episode.tools[request.name]
        said = await tool.call(json.loads(request.arguments_json), request.call_id)
    except ToolMistake as mistake:
        said = ToolAnswer(text=f"error: {mistake}", is_error=True)
    except Exception as error:  # noqa: BLE001 - likewise
        return contract.CallResponse(failure=told_failure(error))
    return contract.CallResponse(text=said.text, is_error=said.is_error, signals=said.signals)
