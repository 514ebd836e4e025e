"""OpenAI's chat completions: requests read, replies, streams and errors written. Pure.

Source: the OpenAI API reference, ``/v1/chat/completions``.
"""

from __future__ import annotations

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
    read_flag,
    read_object,
    require_known,
    require_list,
    require_prompt,
    require_text,
)
from rollout.types import Message, ToolCall, ToolResult

PATH = "/v1/chat/completions"
SAMPLING = frozenset(
    {
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "user", "store"),
        *("metadata", "service_tier", "prompt_cache_key", "safety_identifier", "verbosity"),
        *("reasoning_effort", "parallel_tool_calls", "presence_penalty", "frequency_penalty"),
    }
)
"""Read, and of no effect: how a reply is sampled is the run's."""
KNOWN = SAMPLING | {"model", "messages", "tools", "tool_choice", "stream", "stream_options", "n"}
ROLES = {"system": "system", "developer": "system", "user": "user"}


def read_ask(body: bytes) -> AgentAsk:
    """One request. Raises AskRefused."""
    fields = read_object(body)
    _require_one(fields)
    fields = {name: value for name, value in fields.items() if value not in ([], {})}
    if fields.get("response_format") == {"type": "text"} or fields.get("logprobs") is False:
        fields = {k: v for k, v in fields.items() if k not in ("response_format", "logprobs")}
    require_known(fields, KNOWN)
    if fields.get("tool_choice") not in (None, "auto"):
        message = "tool_choice must be auto: what the policy calls is its own choice"
        raise AskRefused(400, message, "tool_choice")
    options = fields.get("stream_options") or {}
    listed = require_list(fields, "messages", MESSAGES_MAX)
    messages = [_read_message(one, index) for index, one in enumerate(listed)]
    return AgentAsk(
        messages=require_prompt(messages),
        tools=tuple(
            _read_tool(one, index)
            for index, one in enumerate(require_list(fields, "tools", TOOLS_MAX))
        ),
        stream=read_flag(fields, "stream"),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
        model=require_text(fields.get("model") or "", "model"),
    )


def _require_one(fields: Mapping[str, Any]) -> None:
    number = fields.get("n")
    if number is not None and (number != 1 or isinstance(number, bool)):
        raise AskRefused(400, "n must be 1: a turn has one reply", "n", "unsupported_value")


def _read_tool(tool: Mapping[str, Any], index: int) -> Any:
    field = f"tools[{index}]"
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise AskRefused(400, f"{field} must be a function", field)
    given = (function.get("name"), function.get("description"), function.get("parameters"))
    return build_tool(*given, field)


def _read_message(said: Mapping[str, Any], index: int) -> Message:
    field = f"messages[{index}]"
    role = said.get("role")
    text = _read_content(said.get("content"), f"{field}.content")
    if role == "assistant":
        calls = require_list(said, "tool_calls", TOOLS_MAX)
        parts = assistant_parts(text, [_read_call(one, field) for one in calls])
        return Message(role="assistant", content=parts)
    if role == "tool":
        call_id = require_text(said.get("tool_call_id"), f"{field}.tool_call_id")
        name = said.get("name")
        result = ToolResult(call_id=call_id, name=name if isinstance(name, str) else "", text=text)
        return Message(role="tool", content=(result,))
    if role not in ROLES:
        raise AskRefused(400, f"{field}.role {role!r:.40} is not supported", f"{field}.role")
    return Message(role="user" if role == "user" else "system", content=text)


def _read_content(content: Any, field: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise AskRefused(400, f"{field} must be a text or a list of parts", field)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise AskRefused(400, f"{field}: a part {kind!r:.40} is not supported, text is", field)
        texts.append(require_text(part.get(kind), field))
    return "".join(texts)


def _read_call(call: Mapping[str, Any], field: str) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict):
        raise AskRefused(400, f"{field}.tool_calls must be functions", f"{field}.tool_calls")
    text = require_text(function.get("arguments") or "{}", f"{field}.tool_calls")
    return build_call(call.get("id"), function.get("name"), text, f"{field}.tool_calls")


def write_reply(reply: GivenReply, ask: AgentAsk) -> bytes:
    """A whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [_write_call(one) for one in reply.calls]
    else:
        message["content"] = reply.text
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish(reply),
    }
    head = _head(reply, ask, "chat.completion")
    return msgspec.json.encode({**head, "choices": [choice], "usage": _usage(reply)})


def write_events(reply: GivenReply, ask: AgentAsk) -> Iterator[bytes]:
    """The same answer as the events of a stream."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if reply.reasoning:
        deltas.append({"reasoning_content": reply.reasoning})
    if reply.text:
        deltas.append({"content": reply.text})
    for index, call in enumerate(reply.calls):
        deltas.append({"tool_calls": [{"index": index, **_write_call(call)}]})
    head = _head(reply, ask, "chat.completion.chunk")
    for delta in deltas:
        yield _event({**head, "choices": [_choice(delta, None)]})
    yield _event({**head, "choices": [_choice({}, _finish(reply))]})
    if ask.usage:
        yield _event({**head, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def write_error(refused: AskRefused) -> bytes:
    """An error object."""
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    error = {"message": refused.message, "type": kind}
    return msgspec.json.encode({"error": {**error, "param": refused.field, "code": refused.code}})


def _write_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_text or "{}"}
    return {"id": call.call_id, "type": "function", "function": function}


def _finish(reply: GivenReply) -> str:
    return "tool_calls" if reply.calls else "stop"


def _head(reply: GivenReply, ask: AgentAsk, name: str) -> dict[str, Any]:
    """What answers begin with: the same in every replay."""
    return {"id": f"chatcmpl-{reply.turn}", "object": name, "created": 0, "model": ask.model}


def _choice(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _usage(reply: GivenReply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.num_prompt,
        "completion_tokens": reply.num_tokens,
        "total_tokens": reply.num_prompt + reply.num_tokens,
    }


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
