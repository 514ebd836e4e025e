"""Tool calls in conversations of a data set: OpenAI's form, as plain data and as messages. Pure.

A call's arguments are a JSON object, or its text. Ids of a data set are not kept: a call is named by its place, as those
that a policy makes, because families take other ids; a result without an id belongs to the first call without one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollout.data.rows.fields import BadRecord, Turn, kind, read_text_turn, read_turns
from rollout.rendering.tool_calls import CALLS_MAX, call_id
from rollout.turns import ToolSpec
from rollout.types import Message, Part, TextPart, ToolCall, ToolResult

TOOLS_MAX = 128


def read_conversation(record: Mapping[str, Any], field: str) -> list[Turn]:
    """The messages of a field, with the calls and results that are in them. Raises BadRecord."""
    return read_turns(record, field, _read_turn)


def _read_turn(item: Any, where: str) -> Turn:
    if not isinstance(item, Mapping):
        return read_text_turn(item, where)
    if item.get("tool_calls"):
        calls = _read_calls(item, where)
        said = item.get("content") or ""
        if not isinstance(said, str):
            raise BadRecord(f"field {where}.content: expected text, got {kind(said)}")
        return {"role": "assistant", "content": said, "tool_calls": calls}
    if item.get("role") != "tool":
        return read_text_turn(item, where)
    told = item.get("content")
    if not isinstance(told, str):
        raise BadRecord(
            f"field {where}.content: expected the tool's answer as text, got {kind(told)}"
        )
    return {"role": "tool", "content": told, "tool_call_id": str(item.get("tool_call_id") or "")}


def _read_calls(item: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    found = item["tool_calls"]
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) > CALLS_MAX:
        raise BadRecord(f"field {where}.tool_calls: expected a list of at most {CALLS_MAX} calls")
    if item.get("role") != "assistant":
        raise BadRecord(f"field {where}: {item.get('role')!r} calls tools; only the assistant does")
    return [_read_call(one, f"{where}.tool_calls[{i}]") for i, one in enumerate(found)]


def _read_call(given: Any, where: str) -> dict[str, Any]:
    said = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(said.get("name"), str) or not said["name"]:
        raise BadRecord(f"field {where}: expected {{function: {{name, arguments}}}}")
    arguments = _json(said.get("arguments") or {}, f"{where}.arguments")
    if not isinstance(arguments, Mapping):
        raise BadRecord(f"field {where}.arguments: expected an object, got {kind(arguments)}")
    return {
        "id": str(given.get("id") or ""),
        "name": said["name"],
        "arguments": dict(arguments),
    }


def read_tools(found: Any, where: str) -> list[dict[str, Any]]:
    """The tools that a record's prompt names: ``name``, ``description``, ``parameters``. Raises BadRecord."""
    listed = _json(found, f"field {where}")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) > TOOLS_MAX:
        raise BadRecord(f"field {where!r}: expected a list of at most {TOOLS_MAX} tools")
    return [_read_tool(one, f"{where}[{i}]") for i, one in enumerate(listed)]


def _read_tool(given: Any, where: str) -> dict[str, Any]:
    said = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(said.get("name"), str) or not said["name"]:
        raise BadRecord(f"field {where}: expected {{function: {{name, description, parameters}}}}")
    parameters = said.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise BadRecord(f"field {where}: parameters: expected an object, got {kind(parameters)}")
    description = str(said.get("description") or "")
    return {"name": said["name"], "description": description, "parameters": dict(parameters)}


def _json(found: Any, where: str) -> Any:
    if not isinstance(found, str):
        return found
    try:
        return json.loads(found)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{where}: expected JSON, got {found!r:.40}") from error


def build_messages(turns: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages of a conversation, its calls and results named by their places."""
    messages: list[Message] = []
    waiting: list[tuple[str, ToolCall]] = []
    for place, turn in enumerate(turns):
        if turn.get("tool_calls"):
            calls = [_call(call, place, i) for i, call in enumerate(turn["tool_calls"])]
            waiting = [
                (str(call["id"]), made)
                for call, made in zip(turn["tool_calls"], calls, strict=True)
            ]
            said: tuple[Part, ...] = (TextPart(text=turn["content"]),) if turn["content"] else ()
            messages.append(Message(role="assistant", content=(*said, *calls)))
        elif turn["role"] == "tool":
            messages.append(Message(role="tool", content=_result(turn, waiting)))
        else:
            messages.append(Message(role=turn["role"], content=turn["content"]))
    return tuple(messages)


def build_tools(found: Sequence[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """The tools of a row."""
    return tuple(ToolSpec(**one) for one in found)


def _call(given: Mapping[str, Any], place: int, index: int) -> ToolCall:
    arguments = given["arguments"]
    return ToolCall(
        call_id=call_id(place, index),
        name=given["name"],
        arguments_text=json.dumps(arguments, ensure_ascii=False),
        arguments=arguments,
    )


def _result(
    turn: Mapping[str, Any], waiting: list[tuple[str, ToolCall]]
) -> str | tuple[ToolResult, ...]:
    """The result of the call that it names, else of the first that has none; of none: its text alone."""
    named = str(turn.get("tool_call_id") or "")
    found = next((i for i, (one, _) in enumerate(waiting) if one == named), 0)
    if not waiting:
        return str(turn["content"])
    _, call = waiting.pop(found)
    return (ToolResult(call_id=call.call_id, name=call.name, text=turn["content"]),)
