"""What clients asked and were answered, as conversations to learn from: lines of the request log whose bodies were kept.

A row has the conversation with the answer as its last message, in the form that ``messagesField`` reads, and where it is from. What
cannot be learned from is left out by its reason, and never guessed at: half an answer is none. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from rollout.inference.gateway.request_log import RequestLine

CHAT_PATH = "/v1/chat/completions"
WHOLE = frozenset({"stop", "tool_calls"})
"""Why an answer ends that says all that it has to."""
EVENT, LAST_EVENT = "data: ", "[DONE]"


class LeftOut(StrEnum):
    """Why a line is no row."""

    unreadable = "no line of a request log"
    not_answered = "not answered"
    no_chat = "no chats"
    no_bodies = "without bodies, or with one that was too long to be kept"
    cut_off = "cut off before their end"
    no_text = "with parts that are no text"


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


class _Asked(msgspec.Struct):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


def read_line(data: bytes) -> RequestLine | None:
    """A line of the log; None for what is none."""
    try:
        return msgspec.json.decode(data, type=RequestLine)
    except msgspec.DecodeError:
        return None


def build_rows(line: RequestLine) -> list[dict[str, Any]] | LeftOut:
    """One row for each answer of a chat that was given whole, or why there is none."""
    if (why := _unusable(line)) is not None:
        return why
    try:
        asked = msgspec.json.decode(line.input, type=_Asked)
        choices = list(_told(line.output) if line.stream else _read(line.output).choices)
    except msgspec.DecodeError:
        return LeftOut.cut_off
    messages = [_plain(one) for one in asked.messages]
    if None in messages:
        return LeftOut.no_text
    answers = [_said(one.message) for one in choices if one.message and one.finish_reason in WHOLE]
    tools = {"tools": asked.tools} if asked.tools else {}
    source = {"id": line.id, "version": line.version, "digest": line.digest, "time": line.time}
    rows = [{"messages": [*messages, one], **tools, **source} for one in answers if one]
    return rows or LeftOut.cut_off


def _unusable(line: RequestLine) -> LeftOut | None:
    if line.code != 200:
        return LeftOut.not_answered
    if line.path != CHAT_PATH:
        return LeftOut.no_chat
    return None if line.input and line.output else LeftOut.no_bodies


def _read(text: str) -> _Answer:
    return msgspec.json.decode(text, type=_Answer)


def _told(text: str) -> Iterator[_Choice]:
    """The choices of a stream, put together from its events. Raises DecodeError for one that is none, or that ended early."""
    events = [one for one in text.splitlines() if one]
    if not events or events[-1] != EVENT + LAST_EVENT:
        raise msgspec.DecodeError("the stream has no end")
    choices: dict[int, _Choice] = {}
    for event in events[:-1]:
        for part in _read(event.removeprefix(EVENT)).choices:
            whole = choices.setdefault(part.index, _Choice(message=_Message()))
            _add(whole, part)
    yield from choices.values()


def _add(whole: _Choice, part: _Choice) -> None:
    whole.finish_reason = part.finish_reason or whole.finish_reason
    message, more = whole.message, part.delta
    if more is None or message is None:
        return
    if more.content is not None:
        message.content = (message.content or "") + more.content
    calls = message.tool_calls = message.tool_calls or []
    for call in more.tool_calls or ():
        _add_call(calls, call)


def _add_call(calls: list[_Call], more: _Call) -> None:
    known = next((one for one in calls if one.index == more.index), None)
    if known is None:
        calls.append(more)
        return
    known.id = known.id or more.id
    have, new = known.function or _Function(), more.function or _Function()
    known.function = _Function(
        name=(have.name or "") + (new.name or ""),
        arguments=(have.arguments or "") + (new.arguments or ""),
    )


def _said(message: _Message) -> dict[str, Any] | None:
    """The assistant's message; None where it says and calls nothing."""
    if not message.content and not message.tool_calls:
        return None
    said: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        said["tool_calls"] = [_called(place, one) for place, one in enumerate(message.tool_calls)]
    return said


def _called(place: int, call: _Call) -> dict[str, Any]:
    function = call.function or _Function()
    return {
        "id": call.id or f"call_{place}",
        "type": "function",
        "function": {"name": function.name or "", "arguments": function.arguments or ""},
    }


def _plain(message: dict[str, Any]) -> dict[str, Any] | None:
    """A message whose content is one text; None where it has other parts."""
    content = message.get("content")
    if isinstance(content, str | None):
        return message
    if not isinstance(content, Sequence):
        return None
    given = [one.get("text") for one in content if isinstance(one, dict)]
    texts = [one for one in given if isinstance(one, str)]
    if len(texts) != len(content):
        return None
    return {**message, "content": "".join(texts)}
