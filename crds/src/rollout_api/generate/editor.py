"""JSON Schema (2020-12) for editors and charts: the same tree, with numbers where people write them."""

import json
from typing import Any

from rollout_api.base import REAL_PATTERN
from rollout_api.generate.tree import Array, Leaf, Mapping, Member, Node, Object

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LIMITS = (
    ("minimum", "minimum"),
    ("maximum", "maximum"),
    ("above", "exclusiveMinimum"),
    ("below", "exclusiveMaximum"),
)


def build_schema(root: Object, *, title: str) -> Schema:
    """A self-contained schema; every model is defined once and referred to."""
    definitions: dict[str, Schema] = {}
    reference = _schema(root, definitions)
    return {
        "$schema": DIALECT,
        "title": title,
        **reference,
        "$defs": dict(sorted(definitions.items())),
    }


def to_json(schema: Schema) -> str:
    """Text with stable order and a final newline."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _schema(node: Node, definitions: dict[str, Schema]) -> Schema:
    match node:
        case Leaf():
            return _leaf(node)
        case Array():
            schema: Schema = {"type": "array", "items": _schema(node.items, definitions)}
            return schema | _present(minItems=node.min_length, maxItems=node.max_length)
        case Mapping():
            values = _schema(node.values, definitions)
            return {"type": "object", "additionalProperties": values} | _present(
                maxProperties=node.max_length
            )
        case Object():
            if node.name not in definitions:
                definitions[node.name] = {}
                definitions[node.name] = _object(node, definitions)
            return {"$ref": f"#/$defs/{node.name}"}


def _object(node: Object, definitions: dict[str, Schema]) -> Schema:
    schema: Schema = {
        "type": "object",
        "description": node.description,
        "properties": {m.name: _member(m, definitions) for m in node.members},
        "additionalProperties": node.name in ("Meta", "RunMeta", "SweepMeta"),
    }
    required = [member.name for member in node.members if member.required]
    if required:
        schema["required"] = required
    if node.union:
        schema["oneOf"] = [{"required": [name]} for name in node.union]
    return schema


def _member(member: Member, definitions: dict[str, Schema]) -> Schema:
    schema = {"description": member.description, **_schema(member.node, definitions)}
    return schema | _present(default=member.default)


def _leaf(node: Leaf) -> Schema:
    if node.type == "real":
        number = {"type": "number"} | _present(
            **{name: getattr(node, source) for source, name in _LIMITS}
        )
        return {"anyOf": [number, {"type": "string", "pattern": REAL_PATTERN}]}
    if node.type == "quantity":
        text = {"type": "string", "pattern": node.pattern}
        return {"anyOf": [{"type": "integer", "minimum": 0}, text]}
    if node.type == "time":
        return {"type": "string", "format": "date-time"}
    if node.enum:
        return {"type": "string", "enum": list(node.enum)}
    sizes = _present(minLength=node.min_length, maxLength=node.max_length, pattern=node.pattern)
    limits = _present(minimum=node.minimum, maximum=node.maximum)
    return {"type": node.type} | sizes | limits


def _present(**entries: Any) -> Schema:
    return {name: value for name, value in entries.items() if value is not None}
