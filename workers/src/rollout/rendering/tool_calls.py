"""What a reply says beside its words: reasoning and tool calls, read in the form that its model's family writes.

Text in, parts out. What was sampled is never written anew: a call keeps its arguments as they stand, and one that
is wrong is a call with a status, which the policy is told of. No call is read out of reasoning that did not end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rollout.turns import ToolSpec
from rollout.types import CallStatus, Part, ReasoningPart, TextPart, ToolCall

CallForm = Literal["hermes", "function", "llama3", "mistral"]
"""``hermes``: ``<tool_call>`` with JSON (Qwen 2.5, Qwen 3); ``function``: ``<tool_call>`` with ``<function=``
and ``<parameter=`` (Qwen 3.5); ``llama3``: the whole reply is one JSON object; ``mistral``: ``[TOOL_CALLS]`` and a list."""

CALLS_MAX = 64
"""Calls of one reply that are read; what comes after them is text."""
CALL_ID_CHARACTERS = 9
"""Mistral's templates take ids of exactly so many letters and digits."""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
MISTRAL = "[TOOL_CALLS]"
_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>(.*?)</parameter>", re.DOTALL)

Found = tuple[str, str, Mapping[str, Any] | None, CallStatus]
"""Name, arguments as they stand, what they say, and what is wrong."""


def call_form(template: str) -> CallForm | None:
    """The form in which a chat template writes tool calls; None where it writes none that is known."""
    if "<function=" in template:
        return "function"
    if OPEN in template:
        return "hermes"
    if MISTRAL in template:
        return "mistral"
    return "llama3" if '"parameters": ' in template and "ipython" in template else None


def parse_reply(
    text: str,
    form: CallForm | None,
    tools: Sequence[ToolSpec],
    turn: int,
    *,
    thinking: bool = False,
) -> tuple[Part, ...]:
    """The parts of a reply, in order. ``thinking``: the prompt has begun its reasoning.

    Calls are looked for where there are ``tools``; one of a name that is none of theirs has status ``unknown-tool``.
    """
    reasoning, rest = _split_reasoning(text, thinking=thinking)
    if form is None or not tools:
        said = (TextPart(text=rest),) if rest else ()
        return (*reasoning, *said)
    known, parts, place = {tool.name: tool for tool in tools}, list[Part](), 0
    for found in _READERS[form](rest, known):
        if isinstance(found, str):
            parts += [TextPart(text=found)] if found.strip() else []
        else:
            parts.append(_call(found, known, turn, place))
            place += 1
    return (*reasoning, *parts)


def write_call(call: ToolCall) -> str:
    """A call in the form ``hermes``, for models without a chat template."""
    said = json.dumps(
        {"name": call.name, "arguments": dict(call.arguments or {})}, ensure_ascii=False
    )
    return f"{OPEN}\n{said}\n{CLOSE}"


def call_id(turn: int, place: int) -> str:
    """The id of a call: equal in every replay, in the letters that all families take."""
    return f"t{turn:04d}c{place:03d}"


def _call(found: Found, known: Mapping[str, ToolSpec], turn: int, place: int) -> ToolCall:
    name, text, arguments, status = found
    if status == "ok" and name not in known:
        status = "unknown-tool"
    return ToolCall(
        call_id=call_id(turn, place),
        name=name,
        arguments_text=text,
        arguments=arguments if status == "ok" else None,
        status=status,
    )


def _split_reasoning(text: str, *, thinking: bool) -> tuple[tuple[Part, ...], str]:
    begun = text.lstrip()
    if begun.startswith(THINK):
        begun = begun[len(THINK) :]
    elif not thinking:
        return (), text
    thought, ended, rest = begun.partition(THOUGHT)
    part = ReasoningPart(text=thought.strip("\n"), complete=bool(ended))
    return (part,), rest.lstrip("\n")


def _tagged(
    text: str, known: Mapping[str, ToolSpec], read: Callable[[str, Mapping[str, ToolSpec]], Found]
) -> Iterator[str | Found]:
    """Text and calls between ``<tool_call>`` tags."""
    for _ in range(CALLS_MAX):
        before, opened, rest = text.partition(OPEN)
        yield before
        if not opened:
            return
        inside, closed, text = rest.partition(CLOSE)
        if not closed:
            yield ("", inside, None, "unclosed")
            return
        yield read(inside, known)
    yield text


def _hermes(text: str, known: Mapping[str, ToolSpec]) -> Iterator[str | Found]:
    return _tagged(text, known, lambda inside, _: _json_call(inside, "arguments"))


def _function(text: str, known: Mapping[str, ToolSpec]) -> Iterator[str | Found]:
    return _tagged(text, known, _function_call)


def _function_call(inside: str, known: Mapping[str, ToolSpec]) -> Found:
    match = _FUNCTION.fullmatch(inside)
    if match is None:
        return "", inside, None, "malformed"
    name, body = match[1].strip(), match[2]
    schema = known[name].parameters.get("properties", {}) if name in known else {}
    given = {
        key.strip(): _typed(value.strip("\n"), schema.get(key.strip(), {}))
        for key, value in _PARAMETER.findall(body)
    }
    return name, body, given, "ok" if name else "missing-name"


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """A parameter's value: text where the schema says so, else what it says as JSON, where it does."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _llama3(text: str, known: Mapping[str, ToolSpec]) -> Iterator[str | Found]:
    del known
    begun = text.strip().removeprefix("<|python_tag|>").strip()
    if begun.startswith("{") and ('"name"' in begun or '"parameters"' in begun):
        yield _json_call(begun, "parameters")
    else:
        yield text


def _mistral(text: str, known: Mapping[str, ToolSpec]) -> Iterator[str | Found]:
    del known
    before, opened, rest = text.partition(MISTRAL)
    yield before
    if not opened:
        return
    try:
        listed, end = json.JSONDecoder().raw_decode(rest.strip())
    except (ValueError, RecursionError):
        yield ("", rest, None, "invalid-json")
        return
    if not isinstance(listed, list):
        yield ("", rest, None, "malformed")
        return
    for one in listed[:CALLS_MAX]:
        yield _checked(
            one, "arguments", json.dumps(one.get("arguments")) if isinstance(one, dict) else ""
        )
    yield rest.strip()[end:]


def _json_call(inside: str, field: str) -> Found:
    try:
        said = json.loads(inside)
    except (ValueError, RecursionError):
        return "", inside, None, "invalid-json"
    return _checked(said, field, _arguments_text(inside, field))


def _checked(said: Any, field: str, text: str) -> Found:
    if not isinstance(said, dict):
        return "", text, None, "malformed"
    name, arguments = said.get("name"), said.get(field, {})
    if not isinstance(name, str) or not name:
        return "", text, None, "missing-name"
    if not isinstance(arguments, dict):
        return name, text, None, "malformed"
    return name, text, arguments, "ok"


def _arguments_text(inside: str, field: str) -> str:
    """The arguments as they were sampled, out of an object that is JSON."""
    match = re.search(rf'"{field}"\s*:\s*', inside)
    if match is None:
        return ""
    try:
        _, end = json.JSONDecoder().raw_decode(inside, match.end())
    except ValueError:
        return inside[match.end() :]
    return inside[match.end() : end]


_READERS: Mapping[CallForm, Callable[[str, Mapping[str, ToolSpec]], Iterator[str | Found]]] = {
    "hermes": _hermes,
    "function": _function,
    "llama3": _llama3,
    "mistral": _mistral,
}
