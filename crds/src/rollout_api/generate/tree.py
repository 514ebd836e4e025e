"""The models as a small frozen tree: what every generator reads. Pure.

Only the shapes that the API uses are known; anything else is refused here, at generation, rather
than by an API server later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rollout_api.base import (
    LIST_MAP_KEYS,
    LIST_TYPE,
    PRESET,
    ApiModel,
    IsReal,
    IsTemplate,
    IsTime,
    OneOf,
    Rule,
)
from rollout_api.generate.docstrings import describe_fields, describe_model
from rollout_api.v1alpha1.pods.pods import IsQuantity

Scalar = Literal["string", "integer", "boolean", "real", "quantity", "time"]
_SCALARS: dict[type, Scalar] = {str: "string", int: "integer", bool: "boolean"}
_BOUNDS = {"ge": "minimum", "gt": "above", "le": "maximum", "lt": "below"}
_SIZES = ("min_length", "max_length", "pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A scalar. ``above`` and ``below`` are exclusive bounds."""

    type: Scalar
    enum: tuple[str, ...] = ()
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A list."""

    items: "Node"
    min_length: int | None
    max_length: int | None
    list_type: str | None
    list_map_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """A map from strings."""

    keys: "Node"
    values: "Node"
    max_length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One field of an object; ``default`` is None when there is none, ``preset`` when a preset has it.

    ``template``: an object of another kind, which definitions do not look into.
    """

    name: str
    description: str
    node: "Node"
    required: bool
    default: Any
    preset: bool
    template: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """A model."""

    name: str
    description: str
    members: tuple[Member, ...]
    union: tuple[str, ...]
    rules: tuple[Rule, ...]


Node = Leaf | Array | Mapping | Object


def build_tree(model: type[ApiModel]) -> Object:
    """The tree of one model. Raises TypeError for a type that the API does not use."""
    docs = describe_fields(model)
    members = tuple(
        _member(name, field, docs.get(name, "")) for name, field in model.model_fields.items()
    )
    union = model.union_members() if issubclass(model, OneOf) else ()
    return Object(
        name=model.__name__,
        description=describe_model(model),
        members=members,
        union=tuple(str(model.model_fields[name].alias) for name in union),
        rules=model.rules,
    )


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, once per place."""
    yield node
    match node:
        case Object():
            for member in node.members:
                yield from walk(member.node)
        case Array():
            yield from walk(node.items)
        case Mapping():
            yield from walk(node.keys)
            yield from walk(node.values)


def _member(name: str, field: FieldInfo, description: str) -> Member:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return Member(
        name=str(field.alias or name),
        description=description,
        node=_node(field.annotation, field.metadata, extra),
        required=field.is_required(),
        default=_default(field),
        preset=bool(extra.get(PRESET)),
        template=any(isinstance(one, IsTemplate) for one in field.metadata),
    )


def _default(field: FieldInfo) -> Any:
    """The default as a document would hold it; None when there is none or it is empty."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value in (None, (), {}):
        return None
    if isinstance(value, ApiModel):
        return value.model_dump(mode="json", exclude_unset=True)
    return list(value) if isinstance(value, tuple) else value


def _node(annotation: Any, metadata: Sequence[Any], extra: Any) -> Node:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _node(arguments[0], [*arguments[1:], *metadata], extra)
    if origin in (Union, UnionType):
        (inner,) = (item for item in arguments if item is not NoneType)
        return _node(inner, metadata, extra)
    if origin is Literal:
        return Leaf(type="string", enum=arguments)
    if origin is tuple:
        return _array(arguments[0], metadata, extra)
    if origin is dict:
        keys, values = (_node(item, [], {}) for item in arguments)
        return Mapping(
            keys=keys, values=values, max_length=_constraints(metadata).get("max_length")
        )
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return build_tree(annotation)
    return _leaf(annotation, metadata)


def _array(item: Any, metadata: Sequence[Any], extra: Any) -> Array:
    found = _constraints(metadata)
    return Array(
        items=_node(item, [], {}),
        min_length=found.get("min_length"),
        max_length=found.get("max_length"),
        list_type=extra.get(LIST_TYPE),
        list_map_keys=tuple(extra.get(LIST_MAP_KEYS, ())),
    )


def _leaf(annotation: Any, metadata: Sequence[Any]) -> Leaf:
    found = _constraints(metadata)
    if any(isinstance(item, IsReal) for item in metadata):
        return Leaf(type="real", **found)
    if any(isinstance(item, IsQuantity) for item in metadata):
        return Leaf(type="quantity", **found)
    if any(isinstance(item, IsTime) for item in metadata):
        return Leaf(type="time", **found)
    if annotation not in _SCALARS:
        raise TypeError(f"the API has no place for {annotation!r}; use one of {list(_SCALARS)}")
    return Leaf(type=_SCALARS[annotation], **found)


def _constraints(metadata: Sequence[Any]) -> dict[str, Any]:
    """Bounds from annotated-types and pydantic metadata, whichever way they were written."""
    found: dict[str, Any] = {}
    for item in metadata:
        for source, name in (*_BOUNDS.items(), *zip(_SIZES, _SIZES, strict=True)):
            value = getattr(item, source, None)
            if value is not None:
                found[name] = value
    return found
