"""OpenAI's ``/v1/responses`` as far as it can be honest here: one answer to one input, whole or streamed, kept nowhere.

What rests on answers that are stored, on tools of OpenAI's own or on work in the background is refused by its name. The
rest is vLLM's own route, passed through. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollout.inference.gateway.rules.refusals import invalid

RESPONSES_PATH = "/v1/responses"
_WHY: Mapping[str, str] = {
    "previous_response_id": "no answer is stored here; send the conversation in 'input'",
    "conversation": "no conversation is stored here; send it in 'input'",
    "background": "nothing runs in the background here; stream, or use batches",
    "store": "no answer is stored here; leave it out or send false",
    "prompt": "no prompt is stored here; send it in 'input' and 'instructions'",
}
"""Refused where they ask for anything."""
INCLUDED = frozenset({"message.output_text.logprobs"})
LAST_EVENT = re.compile(
    rb"^event: (response\.completed|response\.incomplete|response\.failed|error)\n", re.MULTILINE
)
"""A line of its own: in a string of a model's the line's end would be escaped."""


def refuse_stateful(fields: Mapping[str, Any]) -> None:
    """Raise ApiRefusal for a body that rests on more than itself."""
    for name, why in _WHY.items():
        if fields.get(name):
            raise invalid(f"'{name}': {why}", param=name, code="unsupported_parameter")
    for place, tool in enumerate(_list(fields, "tools")):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            message = (
                "only tools of type function are supported: there are none of OpenAI's own here"
            )
            raise invalid(message, param=f"tools[{place}].type", code="unsupported_parameter")
    for name in _list(fields, "include"):
        if not isinstance(name, str) or name not in INCLUDED:
            message = f"'include' may have {', '.join(INCLUDED)} only"
            raise invalid(message, param="include", code="unsupported_parameter")


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"'{name}' must be a list", param=name, code="invalid_type")
    return value
