"""Between what runs through a run and what a plugin is told: messages, states and endings, checked on the way in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast, get_args

from rollout.errors import InfrastructureError, PluginError
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.turns import Ending, Owner, State, ToolSpec
from rollout.types import (
    CallStatus,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCall,
    ToolResult,
)

NAMED_MAX = 32
MESSAGES_MAX = 64
CHARACTERS_MAX = 1 << 20
OWNERS: Mapping[contract.Owner, Owner] = {
    contract.OWNER_POLICY: "policy",
    contract.OWNER_TASK: "task",
    contract.OWNER_INFRASTRUCTURE: "infrastructure",
}
OWNER_NUMBERS = {name: number for number, name in OWNERS.items()}


def told_message(message: Message) -> contract.Message:
    """A message as a plugin hears it."""
    return contract.Message(role=message.role, parts=[_told_part(part) for part in message.parts])


def _told_part(part: Part) -> contract.Part:
    if isinstance(part, TextPart):
        return contract.Part(text=part.text)
    if isinstance(part, ReasoningPart):
        return contract.Part(reasoning=part.text)
    if isinstance(part, ToolCall):
        call = contract.ToolCall(
            call_id=part.call_id,
            name=part.name,
            arguments_text=part.arguments_text,
            status=part.status,
        )
        return contract.Part(call=call)
    result = contract.ToolResult(
        call_id=part.call_id, name=part.name, text=part.text, is_error=part.is_error
    )
    return contract.Part(result=result)


def heard_message(message: contract.Message) -> Message:
    """A message that a plugin wrote. Raises PluginError naming what is wrong with it."""
    if message.role not in get_args(Role):
        raise PluginError(
            f"a message has role {message.role!r}; expected {', '.join(get_args(Role))}"
        )
    try:
        return Message(
            role=cast("Role", message.role),
            content=tuple(_heard_part(one) for one in message.parts),
        )
    except ValueError as error:
        raise PluginError(str(error)) from error


def _heard_part(part: contract.Part) -> Part:
    kind = part.WhichOneof("kind")
    if kind == "text":
        return TextPart(text=_bounded(part.text))
    if kind == "reasoning":
        return ReasoningPart(text=_bounded(part.reasoning))
    if kind == "result":
        said = part.result
        return ToolResult(
            call_id=said.call_id, name=said.name, text=_bounded(said.text), is_error=said.is_error
        )
    if kind == "call":
        return _heard_call(part.call)
    raise PluginError("a message has a part of no kind that this version knows")


def _heard_call(call: contract.ToolCall) -> ToolCall:
    status = call.status or "ok"
    if status not in get_args(CallStatus):
        raise PluginError(
            f"a call has status {status!r}; expected {', '.join(get_args(CallStatus))}"
        )
    try:
        arguments = json.loads(call.arguments_text) if status == "ok" else None
    except ValueError as error:
        raise PluginError(
            f"the arguments of a call of {call.name!r} are no JSON: {error}"
        ) from error
    return ToolCall(
        call_id=call.call_id,
        name=call.name,
        arguments_text=call.arguments_text,
        arguments=arguments,
        status=cast("CallStatus", status),
    )


def _bounded(text: str) -> str:
    if len(text) > CHARACTERS_MAX:
        raise PluginError(f"a text has {len(text)} characters; at most {CHARACTERS_MAX} are taken")
    return text


def told_turn(said: State | Ending) -> contract.Turn:
    """What an environment says, as a plugin in Python tells it."""
    if isinstance(said, State):
        state = contract.State(
            messages=[told_message(one) for one in said.messages],
            tools=[told_tool(one) for one in said.tools or ()],
            turn_reward=said.turn_reward,
            signals=said.signals,
        )
        return contract.Turn(state=state)
    ending = contract.Ending(
        kind=said.kind,
        owner=OWNER_NUMBERS[said.owner],
        detail=said.detail,
        turn_reward=said.turn_reward,
        signals=said.signals,
    )
    return contract.Turn(ending=ending)


def told_tool(tool: ToolSpec) -> contract.ToolSpec:
    """A tool as it is told."""
    return contract.ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters_json=json.dumps(dict(tool.parameters)),
    )


def heard_turn(turn: contract.Turn, *, first: bool) -> State | Ending:
    """What a plugin's environment said. Raises PluginError, InfrastructureError for a failure that is nobody's."""
    outcome = turn.WhichOneof("outcome")
    if outcome == "state":
        return _heard_state(turn.state, first=first)
    if outcome == "ending":
        return _heard_ending(turn.ending)
    if outcome == "failure":
        raise failure_of(turn.failure)
    raise PluginError("it answered with no state, ending or failure")


def _heard_state(state: contract.State, *, first: bool) -> State:
    if len(state.messages) > MESSAGES_MAX:
        raise PluginError(
            f"{len(state.messages)} messages at once; at most {MESSAGES_MAX} are taken"
        )
    if state.tools and not first:
        raise PluginError("tools stay the same for a whole episode: tell them with the first state")
    return State(
        messages=tuple(heard_message(one) for one in state.messages),
        tools=tuple(heard_tool(one) for one in state.tools) or None,
        turn_reward=_reward(state),
        signals=heard_numbers(state.signals, "signals"),
    )


def _heard_ending(ending: contract.Ending) -> Ending:
    owner = OWNERS.get(ending.owner or contract.OWNER_POLICY)
    if owner is None:
        raise PluginError(f"an ending has owner {ending.owner}; expected 1, 2 or 3")
    return Ending(
        kind=ending.kind or "stop",
        owner=owner,
        detail=_bounded(ending.detail),
        turn_reward=_reward(ending),
        signals=heard_numbers(ending.signals, "signals"),
    )


def heard_tool(tool: contract.ToolSpec) -> ToolSpec:
    """A tool that a plugin tells. Raises PluginError for parameters that are no schema of an object."""
    try:
        parameters = json.loads(tool.parameters_json or "{}")
    except (ValueError, RecursionError) as error:
        raise PluginError(f"parameters of tool {tool.name!r} are no JSON: {error}") from error
    if not isinstance(parameters, dict):
        raise PluginError(f"parameters of tool {tool.name!r}: expected a JSON schema of an object")
    return ToolSpec(name=tool.name, description=tool.description, parameters=parameters)


def _reward(said: contract.State | contract.Ending) -> float | None:
    if not said.HasField("turn_reward"):
        return None
    return heard_numbers({"turn_reward": said.turn_reward}, "turn_reward")["turn_reward"]


def heard_numbers(given: Mapping[str, float], what: str) -> dict[str, float]:
    """Named numbers. Raises PluginError for too many, and for one that is not finite."""
    if len(given) > NAMED_MAX:
        raise PluginError(f"{what}: {len(given)} names; at most {NAMED_MAX} are taken")
    for name, value in given.items():
        if not math.isfinite(value) or not 0 < len(name) <= 128:
            raise PluginError(
                f"{what}: {name!r:.60} is {value}; expected a name and a finite number"
            )
    return dict(given)


def failure_of(failure: contract.Failure) -> PluginError | InfrastructureError:
    """What a plugin could not do, as the error that its owner makes it."""
    words = f"{failure.message or 'it says nothing of why'} ({failure.code or 'no code'})"
    if failure.owner == contract.OWNER_INFRASTRUCTURE:
        return InfrastructureError(words)
    return PluginError(words)


def row_json(row: Mapping[str, Any]) -> str:
    """A row as JSON."""
    return json.dumps(dict(row), ensure_ascii=False)
