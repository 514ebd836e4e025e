"""What an agent asks its endpoint for, whatever dialect it speaks: messages, tools, and how it wants the answer.

Pure. A field that would change what is sampled and that nothing here does is refused by name. How a reply is sampled is
the run's (``train.sampling``): temperature and its like are read and have no effect, as the policy would not be itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rollout.turns import Action, ToolSpec
from rollout.types import Message, Part, ReasoningPart, TextPart, ToolCall

TOOLS_MAX = 128
MESSAGES_MAX = 4096
NAME_CHARACTERS_MAX = 128
"""Of a tool, and of a call's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAsk:
    """One request for a reply."""

    messages: tuple[Message, ...]
    """The whole conversation, as the agent tells it; does not end with a reply."""
    tools: tuple[ToolSpec, ...] = ()
    """What the policy may call, at most ``TOOLS_MAX``."""
    stream: bool = False
    """The reply is sent as server-sent events."""
    usage: bool = False
    """A stream ends with the counts of its tokens."""
    model: str = ""
    """Any name; it is told back."""


@dataclass(slots=True, eq=False)
class AskRefused(Exception):  # noqa: N818 - an answer, not a fault
    """What an agent is told instead of a reply."""

    status: int
    """HTTP's."""
    message: str
    """What was wrong, and what to do."""
    field: str | None = None
    """Of the request, that was wrong; None: not one of them."""
    code: str | None = None
    """OpenAI's word for it; None: there is none."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenReply:
    """A reply as an agent hears it. A reply with a call that is none is its text, and has no calls."""

    text: str
    """What is said aloud."""
    reasoning: str = ""
    """What was thought before; empty: nothing."""
    calls: tuple[ToolCall, ...] = ()
    """Whole ones only, in order."""
    turn: int = 0
    """Counts from 0."""
    num_prompt: int = 0
    """Tokens before the reply."""
    num_tokens: int = 0
    """Tokens of the reply."""


def build_reply(action: Action) -> GivenReply:
    """What an agent hears of an action."""
    counts = {"num_prompt": action.num_prompt_tokens, "num_tokens": action.num_tokens}
    if any(call.status not in ("ok", "unknown-tool") for call in action.calls):
        return GivenReply(text=action.text, turn=action.turn, **counts)
    return GivenReply(
        text=action.message.text,
        reasoning="".join(
            one.text for one in action.message.parts if isinstance(one, ReasoningPart)
        ),
        calls=action.calls,
        turn=action.turn,
        **counts,
    )


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises AskRefused."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AskRefused(400, f"the body is no JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise AskRefused(400, "the body must be a JSON object")
    return found


def require_known(fields: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise AskRefused for a field that nothing here reads."""
    for name, value in fields.items():
        if name not in known and value is not None:
            shown = name[:80]
            raise AskRefused(400, f"{shown} is not supported by this endpoint; leave it out", shown)


def require_list(fields: Mapping[str, Any], name: str, most: int) -> Sequence[Any]:
    """A list of objects; empty where it is not given. Raises AskRefused."""
    given = fields.get(name) or []
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise AskRefused(400, f"{name} must be a list of objects", name)
    if len(given) > most:
        raise AskRefused(400, f"{name} has {len(given)} entries, at most {most} are taken", name)
    return given


def require_text(value: Any, field: str) -> str:
    """A text. Raises AskRefused."""
    if not isinstance(value, str):
        raise AskRefused(400, f"{field} must be a text", field)
    return value


def read_flag(fields: Mapping[str, Any], name: str) -> bool:
    """True or false; false where it is not given. Raises AskRefused."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise AskRefused(400, f"{name} must be true or false", name)
    return bool(value)


def build_tool(name: Any, description: Any, parameters: Any, field: str) -> ToolSpec:
    """A tool as it stands in the prompt. Raises AskRefused."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise AskRefused(400, f"{field} has no name", field)
    if not isinstance(parameters or {}, dict):
        raise AskRefused(400, f"{field}: its arguments must be a JSON schema", field)
    return ToolSpec(
        name=name,
        description=require_text(description or "", field),
        parameters=parameters or {"type": "object", "properties": {}},
    )


def build_call(call_id: Any, name: Any, arguments_text: str, field: str) -> ToolCall:
    """A call that an agent says the policy made. Raises AskRefused."""
    return ToolCall(
        call_id=require_text(call_id, field)[:NAME_CHARACTERS_MAX],
        name=require_text(name, field)[:NAME_CHARACTERS_MAX],
        arguments_text=arguments_text,
        arguments=read_arguments(arguments_text),
    )


def read_arguments(text: str) -> dict[str, Any]:
    """The object that a call's arguments are; empty where they are none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def assistant_parts(text: str, calls: Sequence[ToolCall]) -> tuple[Part, ...]:
    """The parts of a reply that an agent says was given."""
    said = (TextPart(text=text),) if text else ()
    return (*said, *calls)


def require_prompt(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages. Raises AskRefused where there are none, or where they end with a reply."""
    if not messages:
        raise AskRefused(400, "messages is empty", "messages")
    if messages[-1].role == "assistant":
        message = "the last message must not be the assistant's: a begun reply is not gone on with"
        raise AskRefused(400, message, "messages")
    return tuple(messages)
