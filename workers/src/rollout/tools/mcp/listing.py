"""What a server says of its tools, as what the policy sees of them: checked, bounded, and its names behind the server's.

What a server writes is text of a stranger that stands in a prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import mcp_types
from jsonschema import Draft202012Validator, SchemaError, validators
from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from rollout.tools.contract import ToolMistake
from rollout.tools.text import clean_text
from rollout.turns import ToolSpec

TOOLS_MAX = 64
NAME_CHARACTERS_MAX = 64
DESCRIPTION_CHARACTERS_MAX = 4096
SCHEMA_CHARACTERS_MAX = 16_384
PARTED = "__"
"""Between a server's name and its tool's."""
_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_PATTERNS = dict.fromkeys(("pattern", "patternProperties", "format"))
"""Not checked: an expression of a server's, held against a text of the policy's, may take for ever."""
_Validator: Any = validators.extend(Draft202012Validator, _PATTERNS)


def read_specs(server: str, tools: Sequence[mcp_types.Tool]) -> tuple[ToolSpec, ...]:
    """The tools by name. Raises ValueError for one that no prompt could have."""
    if not 1 <= len(tools) <= TOOLS_MAX:
        raise ValueError(f"it has {len(tools)} tools, expected 1 to {TOOLS_MAX}")
    specs = {spec.name: spec for spec in (_read_spec(server, one) for one in tools)}
    if len(specs) != len(tools):
        raise ValueError("two of its tools have one name")
    return tuple(specs[name] for name in sorted(specs))


def _read_spec(server: str, tool: mcp_types.Tool) -> ToolSpec:
    name = f"{server}{PARTED}{tool.name}"
    if not _NAME.fullmatch(tool.name) or len(name) > NAME_CHARACTERS_MAX:
        raise ValueError(
            f"tool {tool.name[:80]!r}: expected a name of letters, digits, _ and -, with the server's at most"
            f" {NAME_CHARACTERS_MAX} characters"
        )
    description = clean_text(tool.description or "")
    if len(description) > DESCRIPTION_CHARACTERS_MAX:
        raise ValueError(
            f"tool {tool.name}: its description has {len(description)} characters, expected at most"
            f" {DESCRIPTION_CHARACTERS_MAX}"
        )
    schema = tool.input_schema
    size = len(json.dumps(schema))
    if schema.get("type") != "object" or size > SCHEMA_CHARACTERS_MAX:
        raise ValueError(
            f"tool {tool.name}: expected a schema of an object, of at most {SCHEMA_CHARACTERS_MAX} characters;"
            f" got type {schema.get('type')!r:.40} and {size} characters"
        )
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"tool {tool.name}: its schema is none: {error.message[:200]}") from error
    return ToolSpec(name=name, description=description, parameters=schema)


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
