"""Between replies and actions of OpenEnv, observations and messages. Pure; what a server sends is read as anybody's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout.errors import DataError
from rollout.turns import ToolSpec

TEXT_CHARACTERS_MAX = 100_000
TOOLS_MAX = 128
BESIDE = frozenset({"done", "reward", "metadata"})
"""Fields of every observation that are not for the policy."""


class Mistake(Exception):  # noqa: N818 - an answer to the policy, not a fault
    """A reply that is no action; the policy is told why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """Which fields replies and observations are."""

    action: str = ""
    """The action's field that a reply is; empty: found by ``read_action``."""
    observation: str = ""
    """The observation's field that is shown; empty: found by ``tell_observation``."""


def read_action(reply: str, schema: Mapping[str, Any], wording: Wording) -> dict[str, Any]:
    """The action that a reply is. Raises Mistake for one that is no JSON object where one is needed."""
    if wording.action:
        return {wording.action: reply.strip()}
    required = schema.get("required") or []
    if len(required) == 1 and _is_text(schema, required[0]):
        return {required[0]: reply.strip()}
    try:
        found = json.loads(_unfenced(reply))
    except (ValueError, RecursionError) as error:
        raise Mistake(f"Answer with a JSON object{_named(schema)}; got no JSON.") from error
    if not isinstance(found, dict):
        raise Mistake(f"Answer with a JSON object{_named(schema)}; got {type(found).__name__}.")
    return found


def tell_observation(observation: Any, wording: Wording) -> str:
    """What the policy sees of an observation. Raises DataError for one without the field that is to be shown."""
    if not isinstance(observation, Mapping):
        return _text(observation)
    if wording.observation:
        if wording.observation not in observation:
            raise DataError(
                f"openenv: the observation has no {wording.observation!r}; it has {', '.join(sorted(map(str, observation)))[:300]}"
            )
        return _text(observation[wording.observation])
    shown = {name: value for name, value in observation.items() if name not in BESIDE}
    texts = [value for value in shown.values() if isinstance(value, str)]
    return _text(texts[0] if len(texts) == 1 == len(shown) else shown)


def read_tools(observation: Any) -> tuple[ToolSpec, ...]:
    """The tools that a server lists. Raises DataError where there are none, or what is listed is no tool."""
    listed = observation.get("tools") if isinstance(observation, Mapping) else None
    if not isinstance(listed, list) or not 0 < len(listed) <= TOOLS_MAX:
        raise DataError(
            f"openenv: expected 1 to {TOOLS_MAX} tools of the server, got {listed!r:.80}"
        )
    return tuple(_read_tool(one) for one in listed)


def tell_result(observation: Any) -> tuple[str, bool]:
    """What a call gave, as text, and whether it is an error."""
    if not isinstance(observation, Mapping):
        return _text(observation), False
    if (error := observation.get("error")) is not None:
        message = error.get("message") if isinstance(error, Mapping) else error
        return _text(message), True
    result = observation.get("result")
    if isinstance(result, Mapping):
        parts = result.get("content")
        if isinstance(parts, list):
            texts = [one.get("text") for one in parts if isinstance(one, Mapping)]
            return _text("".join(one for one in texts if isinstance(one, str))), False
        result = result.get("data", result)
    return _text(result), False


def _read_tool(tool: Any) -> ToolSpec:
    name = tool.get("name") if isinstance(tool, Mapping) else None
    if not isinstance(name, str) or not name:
        raise DataError(f"openenv: the server lists a tool without a name: {tool!r:.80}")
    schema = tool.get("input_schema") or tool.get("inputSchema")
    described = tool.get("description")
    return ToolSpec(
        name=name[:128],
        description=described if isinstance(described, str) else "",
        parameters=schema if isinstance(schema, dict) else {"type": "object", "properties": {}},
    )


def _is_text(schema: Mapping[str, Any], name: str) -> bool:
    about = (schema.get("properties") or {}).get(name)
    return isinstance(about, Mapping) and about.get("type") == "string"


def _named(schema: Mapping[str, Any]) -> str:
    names = [name for name in schema.get("properties") or {} if name != "metadata"]
    return f" with the fields {', '.join(names)}" if names else ""


def _unfenced(reply: str) -> str:
    """A reply without the three backticks around it."""
    said = reply.strip()
    if said.startswith("```") and said.endswith("```") and "\n" in said:
        return said[said.index("\n") : -3]
    return said


def _text(value: Any) -> str:
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return said[:TEXT_CHARACTERS_MAX]
