"""What a server says of its tools, as what the policy sees of them: checked, bounded, and its names behind the server's.

What a server writes is text of a stranger that stands in a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import mcp_types
from jsonschema import Draft202012Validator, SchemaError, validators
from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from rollout.tools.contract import ToolMistake
from rollout.tools.foreign import TOOLS_MAX, foreign_spec, in_order
from rollout.turns import ToolSpec

_PATTERNS = dict.fromkeys(("pattern", "patternProperties", "format"))
"""Not checked: an expression of a server's, held against a text of the policy's, may take for ever."""
_Validator: Any = validators.extend(Draft202012Validator, _PATTERNS)


def read_specs(server: str, tools: Sequence[mcp_types.Tool]) -> tuple[ToolSpec, ...]:
    """The tools by name. Raises ValueError for one that no prompt could have."""
    if len(tools) > TOOLS_MAX:
        raise ValueError(f"it has {len(tools)} tools, expected 1 to {TOOLS_MAX}")
    return in_order([_read_spec(server, one) for one in tools])


def _read_spec(server: str, tool: mcp_types.Tool) -> ToolSpec:
    spec = foreign_spec(server, tool.name, tool.description or "", tool.input_schema)
    try:
        Draft202012Validator.check_schema(tool.input_schema)
    except SchemaError as error:
        raise ValueError(f"tool {tool.name}: its schema is none: {error.message[:200]}") from error
    return spec


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise ToolMistake for arguments that the schema does not allow; nothing that it refers to is fetched."""
    try:
        _Validator(schema, registry=Registry()).validate(dict(arguments))
    except ValidationError as error:
        where = ".".join(map(str, error.absolute_path)) or "arguments"
        raise ToolMistake(f"wrong arguments: {where}: {error.message[:300]}") from error
    except (Unresolvable, RecursionError) as error:
        raise ToolMistake(
            "the arguments cannot be checked: the tool's schema refers to what is not in it, or to itself"
        ) from error


def answer_text(result: mcp_types.CallToolResult) -> str:
    """What the policy reads of an answer; what is no text is left out, and told."""
    said = [_content_text(one) for one in result.content]
    if not said and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(said)


def _content_text(content: mcp_types.ContentBlock) -> str:
    if isinstance(content, mcp_types.TextContent):
        return content.text
    if isinstance(content, mcp_types.EmbeddedResource) and isinstance(
        content.resource, mcp_types.TextResourceContents
    ):
        return content.resource.text
    return f"[{content.type} left out]"
