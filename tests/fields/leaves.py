"""Every leaf field of a kind by its path, and another value for one of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from rollout_api.generate.tree import Array, Leaf, Node, Object, build_tree
from rollout_api.generate.tree import Mapping as MappingNode
from rollout_api.v1alpha1.objects.kinds import model_of

STEP = re.compile(r"([^.\[\]]+)|(\[\])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A leaf: a scalar, a map or an object without fields. ``default`` is what it has when nothing is said.

    ``told`` is what the API says of it and of each object that it lies in, the outermost first.
    """

    path: str
    node: Node
    default: Any = None
    told: tuple[str, ...] = ()


@cache
def fields_of(kind: str) -> tuple[Field, ...]:
    """The leaves of a kind in the order of its definition."""
    return tuple(_walk(build_tree(model_of(kind)), "", None, ()))


def _walk(node: Node, path: str, default: Any, told: tuple[str, ...]) -> Iterator[Field]:
    if isinstance(node, Array):
        yield from _walk(node.items, f"{path}[]", None, told)
    elif isinstance(node, Object) and node.members:
        for member in node.members:
            place = f"{path}.{member.name}" if path else member.name
            yield from _walk(member.node, place, member.default, (*told, member.description))
    else:
        yield Field(path=path, node=node, default=default, told=told)


def find(document: Any, path: str) -> Any:
    """What stands at a path, in the entry of each list that has it; None where nothing does."""
    steps = STEP.findall(path)
    for (name, is_list), (following, _) in zip(steps, [*steps[1:], ("", "")], strict=True):
        if is_list:
            document = document[_entry(document, following)] if document else None
        else:
            document = document.get(name) if isinstance(document, Mapping) else None
        if document is None:
            return None
    return document


def _entry(items: Any, name: str | int) -> int:
    """The first entry of a list that has a field of this name: of several forms of an entry each has its own; else the first."""
    having = (i for i, one in enumerate(items or ()) if isinstance(one, Mapping) and name in one)
    return next(having, 0)


def place(document: Mapping[str, Any], path: str, value: Any) -> dict[str, Any] | None:
    """The document with another value at a path; None where its parent is not there."""
    changed = copy.deepcopy(dict(document))
    steps = [name or 0 for name, _ in STEP.findall(path)]
    here: Any = changed
    for name, following in pairwise(steps):
        step = _entry(here, following) if name == 0 else name
        if isinstance(here, dict) and step not in here:
            here[step] = [None] if following == 0 else {}
        here = here[step] if isinstance(here, dict) or here else None
        if here is None:
            return None
    here[steps[-1]] = value
    return changed


def other_value(field: Field, before: Any) -> Any:
    """A valid value that is neither ``before`` nor the default; None for none at all."""
    node = field.node
    old = field.default if before is None else before
    if isinstance(node, MappingNode):
        return {"changed": "1"}
    if isinstance(node, Object):
        return {}
    assert isinstance(node, Leaf)
    if node.enum:
        return next((one for one in node.enum if one != old), None)
    if node.type == "boolean":
        return not old
    if node.type == "integer":
        return _other_integer(node, old)
    if node.type == "real":
        return _other_real(node, old)
    return "3Gi" if node.type == "quantity" else "changed"


def _other_integer(node: Leaf, old: Any) -> int:
    start = int(node.minimum or 0) if old is None else int(old)
    wanted = start + 1
    if node.maximum is not None and wanted > node.maximum:
        wanted = start - 1
    return wanted


def _other_real(node: Leaf, old: Any) -> str:
    start = float(old) if old is not None else 1.0
    wanted = start * 0.5 if start else 0.25
    low = node.above if node.above is not None else node.minimum
    if low is not None and wanted <= low:
        wanted = start * 1.5 or 0.25
    return str(wanted)


def is_union_member(field: Field) -> bool:
    """Whether the field is an object without fields of its own: it is chosen in place of another."""
    return isinstance(field.node, Object)
