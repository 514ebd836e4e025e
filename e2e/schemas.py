"""The rules of the definitions, and the smallest object of a kind that has something at a given place."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yamls
from runs import CRDS, lay_over

Path = tuple[str, ...]
MEASURED = {"evaluations": [{"suite": {"builtin": {"name": "x"}}}]}
"""Beside actors: the smallest run trains on rows alone, and without an evaluation has no actors to set."""
TEXTS = ("x", "1", "a@v1", "0 2 * * *", f"blake3:{'0' * 64}")
"""One of them fits each pattern of the definitions."""
UNION = re.compile(r"exactly one of (.+) must be set")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of a definition; in ``path`` a ``*`` is any item or key."""

    kind: str
    path: Path
    expression: str
    message: str

    @property
    def about_changes(self) -> bool:
        """Whether it compares with what was before."""
        return "oldSelf" in self.expression

    @property
    def field(self) -> str:
        """Where the API server says it is broken, items being the first and keys ``key``."""
        return ".".join(self.path).replace(".*", "[0]")


def read_schemas() -> dict[str, Any]:
    """The schema of each kind."""
    found = (yamls.read(file.read_text())["spec"] for file in CRDS)
    return {
        spec["names"]["kind"]: spec["versions"][0]["schema"]["openAPIV3Schema"] for spec in found
    }


def read_rules() -> list[Rule]:
    """Every rule of every kind."""
    return [
        Rule(kind=kind, path=path, expression=found["rule"], message=found["message"])
        for kind, schema in read_schemas().items()
        for path, found in _walk(schema, ())
    ]


def _walk(schema: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule
    for name, inner in schema.get("properties", {}).items():
        yield from _walk(inner, (*path, name))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _walk(schema[key], (*path, "*"))


def find_schema(schema: Any, path: Path) -> Any:
    """The part of a schema that a place has."""
    for name in path:
        within = schema.get("items") or schema.get("additionalProperties")
        schema = within if name == "*" else schema["properties"][name]
    return schema


def build_document(kind: str, schema: Any, path: Path, value: Any) -> Any:
    """The smallest object of a kind with a value at a path; without a path it is laid over the object."""
    spec = schema["properties"]["spec"]
    base = {"apiVersion": "rollout.dev/v1alpha1", "kind": kind, "metadata": {"name": "tried"}}
    if not path:
        return lay_over(base | {"spec": build_smallest(spec)}, value)
    beside = MEASURED if path[:2] == ("spec", "actors") else {}
    return base | {"spec": beside | _place(spec, path[1:], value)}


def build_smallest(schema: Any, member: str = "") -> Any:
    """The smallest value that a schema takes; of a union its first member, or this one."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        names = [*schema.get("required", ()), *_choose(schema, member)]
        return {name: build_smallest(schema["properties"][name]) for name in names}
    if kind == "array":
        return [build_smallest(schema["items"])] * schema.get("minItems", 0)
    if kind == "integer":
        return max(1, schema.get("minimum", 1))
    if kind == "boolean":
        return False
    return next(text for text in TEXTS if re.search(schema.get("pattern", ""), text))


def _choose(schema: Any, member: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if union := UNION.fullmatch(rule["message"]):
            members = union.group(1).split(", ")
            yield member if member in members else members[0]


def _place(schema: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    name, rest = path[0], path[1:]
    inner = _place(find_schema(schema, (name,)), rest, value)
    if name != "*":
        return build_smallest(schema, name) | {name: inner}
    return [inner] if "items" in schema else {"key": inner}
