"""Anthropic's messages: requests read, replies, streams and errors written. Pure.

Source: the Anthropic API reference, ``/v1/messages``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rollout.environments.agents.asks import (
    MESSAGES_MAX,
    TOOLS_MAX,
    AgentAsk,
    AskRefused,
    GivenReply,
    assistant_parts,
    build_call,
    build_tool,
    read_arguments,
    read_flag,
    read_object,
    require_known,
    require_list,
    require_prompt,
    require_text,
)
from rollout.types import Message, Part, TextPart, ToolCall, ToolResult

PATH = "/v1/messages"
KNOWN = frozenset(
    {
        *("model", "messages", "system", "tools", "tool_choice", "stream", "max_tokens"),
        *("temperature", "top_p", "top_k", "metadata", "service_tier", "cache_control"),
    }
)
"""Of these, how a reply is sampled is the run's; ``metadata`` and its like have no effect."""
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def read_ask(body: bytes) -> AgentAsk:
    """One request. Raises AskRefused."""
    fields = read_object(body)
    fields = {name: value for name, value in fields.items() if value not in ([], {})}
    if fields.get("thinking") == {"type": "disabled"}:
        fields.pop("thinking")
    require_known(fields, KNOWN)
    if (fields.get("tool_choice") or {"type": "auto"}) not in (
        {"type": "auto"},
        {"type": "auto", "disable_parallel_tool_use": False},
    ):
        message = "tool_choice must be auto: what the policy calls is its own choice"
        raise AskRefused(400, message, "tool_choice")
    system = _read_texts(fields.get("system") or "", "system")
    messages = [Message(role="system", content=system)] if system else []
    for index, said in enumerate(require_list(fields, "messages", MESSAGES_MAX)):
        messages += _read_message(said, f"messages.{index}")
    return AgentAsk(
        messages=require_prompt(messages),
        tools=tuple(
            _read_tool(one, f"tools.{index}")
            for index, one in enumerate(require_list(fields, "tools", TOOLS_MAX))
        ),
        stream=read_flag(fields, "stream"),
        model=require_text(fields.get("model") or "", "model"),
    )


def _read_tool(tool: Mapping[str, Any], field: str) -> Any:
    if tool.get("type") not in (None, "custom"):
        shown = tool.get("type")
        raise AskRefused(400, f"{field}: a tool of type {shown!r:.40} is not supported", field)
    return build_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"), field)


def _read_message(said: Mapping[str, Any], field: str) -> Iterator[Message]:
    """One of them: results of tools are a message of their own, before what is said beside them."""
    role, content = said.get("role"), said.get("content")
    if role not in ("user", "assistant"):
        raise AskRefused(400, f"{field}.role {role!r:.40} is not supported", field)
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(one, dict) for one in blocks):
        raise AskRefused(400, f"{field}.content must be a text or a list of blocks", field)
    parts = [part for block in blocks if (part := _read_block(block, role, field)) is not None]
    text = "".join(one.text for one in parts if isinstance(one, TextPart))
    if role == "assistant":
        calls = [one for one in parts if isinstance(one, ToolCall)]
        yield Message(role="assistant", content=assistant_parts(text, calls))
        return
    results = tuple(one for one in parts if isinstance(one, ToolResult))
    if results:
        yield Message(role="tool", content=results)
    if text or not results:
        yield Message(role="user", content=text)


def _read_block(block: Mapping[str, Any], role: str, field: str) -> Part | None:
    kind = block.get("type")
    if kind == "text":
        return TextPart(text=require_text(block.get("text"), field))
    if role == "assistant" and kind in ("thinking", "redacted_thinking"):
        return None
    if role == "assistant" and kind == "tool_use":
        arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
        return build_call(block.get("id"), block.get("name"), arguments, field)
    if role == "user" and kind == "tool_result":
        return ToolResult(
            call_id=require_text(block.get("tool_use_id"), field),
            name="",
            text=_read_texts(block.get("content") or "", field),
            is_error=read_flag(block, "is_error"),
        )
    raise AskRefused(400, f"{field}: a block of type {kind!r:.40} is not supported", field)


def _read_texts(content: Any, field: str) -> str:
    """A text, or blocks of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise AskRefused(400, f"{field} must be a text or a list of blocks of text", field)
    texts = []
    for block in content:
        if not isinstance(block, dict) or block.get("type") != "text":
            raise AskRefused(400, f"{field}: only blocks of text are supported", field)
        texts.append(require_text(block.get("text"), field))
    return "".join(texts)


def write_reply(reply: GivenReply, ask: AgentAsk) -> bytes:
    """A whole answer."""
    return msgspec.json.encode(
        {**_head(reply, ask), "content": _blocks(reply), **_stop(reply), "usage": _usage(reply)}
    )


def write_events(reply: GivenReply, ask: AgentAsk) -> Iterator[bytes]:
    """The same answer as the events of a stream."""
    begun = {**_head(reply, ask), "content": [], "stop_reason": None, "stop_sequence": None}
    usage = _usage(reply)
    yield _event("message_start", {"message": {**begun, "usage": {**usage, "output_tokens": 0}}})
    for index, block in enumerate(_blocks(reply)):
        empty, delta = _split(block)
        yield _event("content_block_start", {"index": index, "content_block": empty})
        yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ended = {"output_tokens": usage["output_tokens"]}
    yield _event("message_delta", {"delta": _stop(reply), "usage": ended})
    yield _event("message_stop", {})


def write_error(refused: AskRefused) -> bytes:
    """An error object."""
    default = "api_error" if refused.status >= 500 else "invalid_request_error"
    error = {"type": _TYPES.get(refused.status, default), "message": refused.message}
    return msgspec.json.encode({"type": "error", "error": error})


def _blocks(reply: GivenReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        given = {
            "id": call.call_id,
            "name": call.name,
            "input": read_arguments(call.arguments_text),
        }
        blocks.append({"type": "tool_use", **given})
    return blocks


def _split(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A block before anything is said, and all of it as one delta."""
    if block["type"] == "text":
        return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    written = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": written}


def _head(reply: GivenReply, ask: AgentAsk) -> dict[str, Any]:
    """What answers begin with: the same in every replay."""
    return {"id": f"msg_{reply.turn}", "type": "message", "role": "assistant", "model": ask.model}


def _stop(reply: GivenReply) -> dict[str, Any]:
    return {"stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None}


def _usage(reply: GivenReply) -> dict[str, int]:
    return {"input_tokens": reply.num_prompt, "output_tokens": reply.num_tokens}


def _event(name: str, fields: dict[str, Any]) -> bytes:
    data = msgspec.json.encode({"type": name, **fields})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
