"""The rules of kube-api-linter, which reads Go types, asked of our definitions.

Rules about Go's tags, pointers and markers have nothing to look at here: commentstart, conflictingmarkers, dependenttags, duplicatemarkers,
forbiddenmarkers, nonpointerstructs, optionalfields, optionalorrequired, preferredmarkers, requiredfields, uniquemarkers. jsontags, namingconventions and
nophase stand in test_definitions_have_good_taste.py. Off there by default, and here: nobools (`suspend` and `readOnly` are booleans in Kubernetes, too) and
minlength (an empty variable or label is a value). What else is not followed stands below, each with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

Schema = dict[str, Any]
ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "crds" / "generated").glob("*.yaml"))
WORDS_MIN = 4
CORE_LISTS = {"tolerations": "core/v1 Toleration", "nodeSelectorTerms": "core/v1 NodeSelectorTerm"}
"""Lists of Kubernetes' own types, as they are there: without a required field."""
NO_OBJECT_REFERENCES = {
    "preference": "core/v1 PreferredSchedulingTerm",
    "reference": "the reference model of RL, or the reference of an image, as both fields call it",
    "cacheReference": "scores of the reference model",
}
RESOURCE_LISTS = {"requests", "limits", "resources"}
"""Maps that are not of strings to strings: quantities may be written as numbers, as in core/v1 ResourceList."""


@dataclass(frozen=True, slots=True)
class Place:
    """A schema, its own name, its path and what holds it."""

    path: str
    name: str
    schema: Schema
    parent: Schema


@cache
def versions() -> dict[str, Schema]:
    found = (YAML(typ="safe").load(path.read_text())["spec"] for path in FILES)
    return {spec["names"]["kind"]: spec["versions"][0] for spec in found}


def walk(schema: Schema, path: str, name: str, parent: Schema) -> Iterator[Place]:
    yield Place(path, name, schema, parent)
    for inner, below in schema.get("properties", {}).items():
        yield from walk(below, f"{path}.{inner}", inner, schema)
    for key in ("items", "additionalProperties"):
        if isinstance(below := schema.get(key), dict):
            yield from walk(below, f"{path}[]", name, schema)


def everywhere() -> Iterator[Place]:
    for kind, version in versions().items():
        root = version["schema"]["openAPIV3Schema"]
        for part in ("spec", "status"):
            yield from walk(root["properties"][part], f"{kind}.{part}", part, root)


def one_of(schema: Schema) -> bool:
    """A union, or a type that says otherwise when it may not be empty."""
    return any("has(self." in one["rule"] for one in schema.get("x-kubernetes-validations", ()))


def arrayofstruct(place: Place) -> bool:
    inner = place.schema.get("items", {})
    bare = inner.get("type") == "object" and not inner.get("required")
    return bare and not one_of(inner) and place.name not in CORE_LISTS


def conditions(place: Place) -> bool:
    """Those of the kind itself; what a coordinator reports is not written as conditions of the object."""
    if not place.path.endswith(".status.conditions"):
        return False
    keyed = place.schema["x-kubernetes-list-map-keys"] == ["type"]
    told = set(place.schema["items"]["required"])
    return not keyed or not {"type", "status", "reason", "lastTransitionTime"} <= told


def defaultorrequired(place: Place) -> bool:
    return "default" in place.schema and place.name in place.parent.get("required", ())


def defaulttype(place: Place) -> bool:
    """An API server refuses a definition whose default is of another type than its field."""
    kinds = {"string": str, "boolean": bool, "integer": int, "array": list, "object": dict}
    if "default" not in place.schema or place.schema.get("type") not in kinds:
        return False
    default, kind = place.schema["default"], place.schema["type"]
    return not isinstance(default, kinds[kind]) or (kind == "integer" and default is True)


def integers(place: Place) -> bool:
    schema = place.schema
    bounded = "minimum" in schema and ("maximum" in schema or ".status" in place.path)
    return schema.get("type") == "integer" and "format" not in schema and not bounded


def maxlength(place: Place) -> bool:
    schema = place.schema
    told = {"maxLength", "enum", "format", "maxItems"} & schema.keys()
    return schema.get("type") in {"string", "array"} and not told


def maxproperties(place: Place) -> bool:
    return "additionalProperties" in place.schema and "maxProperties" not in place.schema


def nodurations(place: Place) -> bool:
    return place.schema.get("format") == "duration"


def nofloats(place: Place) -> bool:
    return place.schema.get("type") == "number"


def nomaps(place: Place) -> bool:
    values = place.schema.get("additionalProperties")
    plain = values is None or values.get("type") == "string"
    return not plain and place.name not in RESOURCE_LISTS


def nonullable(place: Place) -> bool:
    return bool(place.schema.get("nullable"))


def notimestamp(place: Place) -> bool:
    return "timestamp" in place.name.lower()


def noreferences(place: Place) -> bool:
    return "reference" in place.name.lower() and place.name not in NO_OBJECT_REFERENCES


def ssatags(place: Place) -> bool:
    schema = place.schema
    if schema.get("type") != "array":
        return False
    kind, structs = schema.get("x-kubernetes-list-type"), schema["items"].get("type") == "object"
    if kind == "map":
        return not structs or not schema.get("x-kubernetes-list-map-keys")
    return kind not in {"atomic", "set"} or (kind == "set" and structs)


def statusoptional(place: Place) -> bool:
    return place.name == "status" and bool(place.schema.get("required"))


def short_description(place: Place) -> bool:
    described = re.search(r"\[\]$", place.path) is None
    return described and len(place.schema.get("description", "").split()) < WORDS_MIN


RULES: tuple[Callable[[Place], bool], ...] = (
    arrayofstruct,
    conditions,
    defaultorrequired,
    defaulttype,
    integers,
    maxlength,
    maxproperties,
    nodurations,
    nofloats,
    nomaps,
    nonullable,
    notimestamp,
    noreferences,
    ssatags,
    statusoptional,
    short_description,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_definition_breaks_a_rule(rule):
    assert [place.path for place in everywhere() if rule(place)] == []


def test_every_kind_with_a_status_has_the_subresource():
    assert [kind for kind, one in versions().items() if "status" not in one["subresources"]] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_finds_what_breaks_it(rule):
    assert any(rule(place) for place in walk(BROKEN, "Kind.status", "status", {}))


BROKEN: Schema = {
    "type": "object",
    "required": ["count"],
    "properties": {
        "count": {"type": "integer", "default": 1},
        "lists": {"type": "array", "items": {"type": "object", "properties": {}}},
        "conditions": {
            "type": "array",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["type"]},
        },
        "wait": {"type": "string", "format": "duration"},
        "share": {"type": "number", "nullable": True},
        "each": {"type": "object", "additionalProperties": {"type": "integer"}},
        "endTimestamp": {"type": "string", "default": 0.5},
        "podReference": {"type": "string"},
    },
}
