"""The tree as a structural schema: what a CustomResourceDefinition may hold. Pure.

No ``$ref``, no ``anyOf`` but the one that ``x-kubernetes-int-or-string`` asks for, no floats: a real
is a string with a pattern and a range rule. A default that a preset may override is left out, since
the API server would fill it first. Status carries no defaults at all.
"""

from typing import Any

from rollout_api.base import REAL_LENGTH_MAX, REAL_PATTERN, Rule
from rollout_api.generate.tree import Array, Leaf, Mapping, Member, Node, Object

Schema = dict[str, Any]
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def lower(node: Node, *, defaults: bool = True) -> Schema:
    """The structural schema of a node. Raises ValueError for anything without a bound."""
    match node:
        case Leaf():
            return _leaf(node)
        case Array():
            return _array(node, defaults=defaults)
        case Mapping():
            return _mapping(node)
        case Object():
            return _object(node, defaults=defaults)


def _object(node: Object, *, defaults: bool) -> Schema:
    schema: Schema = {"type": "object", "description": node.description}
    if node.members:
        schema["properties"] = {
            member.name: _member(member, defaults=defaults) for member in node.members
        }
    required = [member.name for member in node.members if member.required]
    if required:
        schema["required"] = required
    rules = [*_union_rules(node), *map(_rule, node.rules)]
    if rules:
        schema["x-kubernetes-validations"] = rules
    return schema


def _member(member: Member, *, defaults: bool) -> Schema:
    if member.template:
        text = {"description": member.description}
        return {"type": "object", **text, "x-kubernetes-preserve-unknown-fields": True}
    defaults = defaults and member.name != "status"
    schema = lower(member.node, defaults=defaults)
    schema["description"] = member.description
    if defaults and not member.preset and member.default is not None:
        schema["default"] = member.default
    return schema


def _union_rules(node: Object) -> list[Schema]:
    if not node.union:
        return []
    has = ", ".join(f"has(self.{name})" for name in node.union)
    message = f"exactly one of {', '.join(node.union)} must be set"
    return [{"rule": f"[{has}].exists_one(x, x)", "message": message}]


def _rule(rule: Rule) -> Schema:
    schema: Schema = {"rule": rule.rule, "message": rule.message, "reason": rule.reason}
    return schema | ({"fieldPath": f".{rule.field}"} if rule.field else {})


def _array(node: Array, *, defaults: bool) -> Schema:
    if node.max_length is None or node.list_type is None:
        raise ValueError(f"a list needs a maximum and a list type: {node}")
    schema: Schema = {
        "type": "array",
        "maxItems": node.max_length,
        "items": lower(node.items, defaults=defaults),
        "x-kubernetes-list-type": node.list_type,
    }
    if node.min_length:
        schema["minItems"] = node.min_length
    if node.list_map_keys:
        schema["x-kubernetes-list-map-keys"] = list(node.list_map_keys)
    return schema


def _mapping(node: Mapping) -> Schema:
    if node.max_length is None:
        raise ValueError(f"a map needs a maximum: {node}")
    return {
        "type": "object",
        "maxProperties": node.max_length,
        "additionalProperties": lower(node.values),
    }


def _leaf(node: Leaf) -> Schema:
    match node.type:
        case "boolean":
            return {"type": "boolean"}
        case "integer":
            return _integer(node)
        case "real":
            return _real(node)
        case "quantity":
            return {
                "x-kubernetes-int-or-string": True,
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": node.pattern,
                "maxLength": node.max_length,
            }
        case "time":
            return {"type": "string", "format": "date-time"}
        case "string":
            return _string(node)


def _string(node: Leaf) -> Schema:
    if node.enum:
        return {"type": "string", "enum": list(node.enum)}
    if node.max_length is None:
        raise ValueError(f"a string needs a maximum: {node}")
    schema: Schema = {"type": "string", "maxLength": node.max_length}
    if node.min_length:
        schema["minLength"] = node.min_length
    if node.pattern:
        schema["pattern"] = node.pattern
    return schema


def _integer(node: Leaf) -> Schema:
    """An integer; bounds at the ends of int64 are the format's, and would not survive a float64."""
    schema: Schema = {"type": "integer"}
    small = node.maximum is not None and node.maximum <= INT32_MAX
    schema["format"] = "int32" if small and (node.minimum or 0) >= -INT32_MAX else "int64"
    if node.minimum is not None and node.minimum > -INT64_MAX:
        schema["minimum"] = node.minimum
    if node.maximum is not None and node.maximum < INT64_MAX:
        schema["maximum"] = node.maximum
    return schema


def _real(node: Leaf) -> Schema:
    schema: Schema = {"type": "string", "pattern": REAL_PATTERN, "maxLength": REAL_LENGTH_MAX}
    limits = (
        (node.minimum, ">=", "at least"),
        (node.above, ">", "above"),
        (node.maximum, "<=", "at most"),
        (node.below, "<", "below"),
    )
    wanted = [(float(bound), sign, word) for bound, sign, word in limits if bound is not None]
    if wanted:
        rule = " && ".join(f"double(self) {sign} {bound!r}" for bound, sign, _ in wanted)
        message = "must be " + " and ".join(f"{word} {bound:g}" for bound, _, word in wanted)
        schema["x-kubernetes-validations"] = [{"rule": rule, "message": message}]
    return schema
