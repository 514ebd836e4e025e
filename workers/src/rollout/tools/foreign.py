"""What others' programs say of their tools, as what the policy sees of them: bounded, and its names behind its owner's.

What such a program writes is text of a stranger that stands in a prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollout.tools.text import clean_text
from rollout.turns import ToolSpec

TOOLS_MAX = 64
NAME_CHARACTERS_MAX = 64
DESCRIPTION_CHARACTERS_MAX = 4096
SCHEMA_CHARACTERS_MAX = 16_384
PARTED = "__"
"""Between the name of a server or plugin and its tool's."""
_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def foreign_spec(owner: str, name: str, description: str, schema: Mapping[str, Any]) -> ToolSpec:
    """One tool. Raises ValueError for one that no prompt could have."""
    whole = f"{owner}{PARTED}{name}"
    if not _NAME.fullmatch(name) or len(whole) > NAME_CHARACTERS_MAX:
        raise ValueError(
            f"tool {name[:80]!r}: expected a name of letters, digits, _ and -, with {owner}{PARTED} at most"
            f" {NAME_CHARACTERS_MAX} characters"
        )
    cleaned = clean_text(description)
    if len(cleaned) > DESCRIPTION_CHARACTERS_MAX:
        raise ValueError(
            f"tool {name}: its description has {len(cleaned)} characters, expected at most"
            f" {DESCRIPTION_CHARACTERS_MAX}"
        )
    size = len(json.dumps(dict(schema)))
    if schema.get("type") != "object" or size > SCHEMA_CHARACTERS_MAX:
        raise ValueError(
            f"tool {name}: expected a schema of an object, of at most {SCHEMA_CHARACTERS_MAX} characters;"
            f" got type {schema.get('type')!r:.40} and {size} characters"
        )
    return ToolSpec(name=whole, description=cleaned, parameters=schema)


def in_order(specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """By name. Raises ValueError for none, too many, and for two of one name."""
    if not 1 <= len(specs) <= TOOLS_MAX:
        raise ValueError(f"it has {len(specs)} tools, expected 1 to {TOOLS_MAX}")
    found = {spec.name: spec for spec in specs}
    if len(found) != len(specs):
        raise ValueError("two of its tools have one name")
    return tuple(found[name] for name in sorted(found))
