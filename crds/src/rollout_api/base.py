"""What every API model shares: strictness, camelCase, decimal reals, unions, rules, presets.

A field's documentation is the string under it. Pydantic could collect those strings, but reading
source at import costs more than the rest of the import together, so only the generators do it
(``rollout_api.generate.docstrings``). Schemas are built on first use for the same reason.
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

REAL_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
REAL_LENGTH_MAX = 32
PRESET = "x-rollout-preset"
LIST_TYPE = "x-kubernetes-list-type"
LIST_MAP_KEYS = "x-kubernetes-list-map-keys"

_REAL = re.compile(REAL_PATTERN)


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule of a model: what the API server checks, and what it says when it refuses.

    ``field`` is the path below the model that the message belongs to (camelCase), empty for the
    model itself. A rule that names ``oldSelf`` runs on updates only.
    """

    rule: str
    message: str
    field: str = ""
    reason: str = "FieldValueInvalid"


_INITIALISMS = re.compile(r"(?<=[a-z0-9])(Uid|Uri)(?![a-z])")


def api_name(name: str) -> str:
    """The name of a Python field as the API writes it: ``run_uid`` is ``runUID``, as in Kubernetes' own kinds."""
    return _INITIALISMS.sub(lambda found: found[0].upper(), to_camel(name))


class ApiModel(BaseModel):
    """Base of every object in the API: immutable, no unknown fields, camelCase outside."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=api_name,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        defer_build=True,
        allow_inf_nan=False,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()


class OneOf(ApiModel):
    """A union: exactly one of ``members`` is set; other fields may sit beside them.

    ``members`` holds Python field names; left empty it means every field of the class.
    """

    members: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def union_members(cls) -> tuple[str, ...]:
        """The Python names of the union's members, in the order they are documented."""
        return cls.members or tuple(cls.model_fields)

    @property
    def chosen(self) -> str:
        """The Python name of the member that is set."""
        return next(m for m in self.union_members() if getattr(self, m) is not None)

    @property
    def value(self) -> Any:
        """The member that is set."""
        return getattr(self, self.chosen)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        names = self.union_members()
        num_set = sum(getattr(self, name) is not None for name in names)
        if num_set != 1:
            given = [api_name(name) for name in names if getattr(self, name) is not None]
            raise PydanticCustomError(
                "exactly_one",
                "exactly one of {members} must be set, got {given}",
                {
                    "members": ", ".join(map(api_name, names)),
                    "given": " and ".join(given) if given else "none",
                },
            )
        return self


class IsReal:
    """Marks a field as a real number, for the generators."""


class IsTime:
    """Marks a field as a time, for the generators."""


class IsTemplate:
    """Marks a field as an object of another kind: definitions take it as it comes, whoever reads it checks it."""


def parse_real(value: Any) -> Any:
    """Turn a decimal string into a float; pass numbers on; refuse anything else, booleans included."""
    if isinstance(value, str) and len(value) <= REAL_LENGTH_MAX and _REAL.match(value):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise PydanticCustomError(
        "real", "expected a number or a decimal string such as '0.2' or '1e-6'"
    )


Real = Annotated[
    float, BeforeValidator(parse_real), PlainSerializer(repr, return_type=str), IsReal()
]
"""A float inside, a decimal string outside (kube YAML tools disagree about floats, not strings)."""


def filled(
    default: Any = ..., *, default_factory: Callable[[], Any] | None = None, **bounds: Any
) -> Any:
    """A field with a default that the schema does not carry, so that a preset may fill it first.

    The value written here is the one of ``defaults@v1``.
    """
    extra = {PRESET: True, **bounds.pop("json_schema_extra", {})}
    if default_factory is not None:
        return Field(default_factory=default_factory, json_schema_extra=extra, **bounds)
    return Field(default=default, json_schema_extra=extra, **bounds)


def many(num_max: int, *, num_min: int = 0, key: str | None = None, **options: Any) -> Any:
    """A bounded list field: a list map when ``key`` (camelCase) names the entries, else atomic."""
    extra: dict[str, Any] = {LIST_TYPE: "map" if key else "atomic", **options.pop("extra", {})}
    if key:
        extra[LIST_MAP_KEYS] = [key]
    if not num_min:
        options.setdefault("default", ())
    return Field(max_length=num_max, min_length=num_min or None, json_schema_extra=extra, **options)


def unique(key: Callable[[Any], Hashable]) -> AfterValidator:
    """Refuse a list in which two entries have the same key."""

    def check(items: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = [key(item) for item in items]
        for item in keys:
            if keys.count(item) > 1:
                raise PydanticCustomError(
                    "duplicate", "'{key}' is given more than once", {"key": str(item)}
                )
        return items

    return AfterValidator(check)


Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
"""A name of something: a plugin, a metric, a data set field."""

Label = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
]
"""A DNS label (RFC 1123)."""

ObjectName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"),
]
"""The name of a Kubernetes object in the same namespace."""

Uri = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
"""A location: ``hf://``, ``s3://``, ``gs://``, ``file://``, ``rollout://``, or a path in local files."""

Digest = Annotated[str, StringConstraints(max_length=80, pattern=r"^[a-z0-9]+:[0-9a-f]{32,64}$")]
"""``algorithm:hex``, such as ``blake3:`` and 64 hexadecimal digits."""

Text = Annotated[str, StringConstraints(max_length=16384)]
"""Free text."""

Message = Annotated[str, StringConstraints(max_length=4096)]
"""A sentence for people."""

Timestamp = Annotated[str, StringConstraints(max_length=40), IsTime()]
"""RFC 3339, UTC; the API server refuses any other text (``format: date-time``)."""
