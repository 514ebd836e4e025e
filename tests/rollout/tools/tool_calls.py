"""Calls as a renderer gives them, for tests of tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rollout.tools.contract import Tool
from rollout.tools.functions import FunctionTool
from rollout.tools.toolbox import Toolbox, ToolboxLimits
from rollout.types import Row, ToolCall


def tool_call(name: str, place: int = 0, turn: int = 0, **arguments: Any) -> ToolCall:
    return ToolCall(
        call_id=f"{turn}-{place}",
        name=name,
        arguments_text=json.dumps(arguments),
        arguments=arguments,
    )


class Given:
    """A source of ready tools."""

    def __init__(self, *tools: Tool) -> None:
        self._tools = tools
        self.specs = tuple(tool.spec for tool in tools)

    def open(self, row: Row) -> tuple[Tool, ...]:
        return self._tools


def box_of(*tools: Tool | Callable[..., Any], limits: ToolboxLimits | None = None) -> Toolbox:
    made = [one if hasattr(one, "spec") else FunctionTool(one) for one in tools]
    return Toolbox([Given(*made)], {}, limits=limits)


async def answer_of(toolbox: Toolbox, *calls: ToolCall) -> list[str]:
    return [one.text for one in (await toolbox.answer(calls)).results]
