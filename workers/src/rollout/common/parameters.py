"""Named text parameters of a builtin or plugin (``parameters: [{name, value}]``), parsed once.

A builtin declares a frozen dataclass with fields of type int, float, bool or str; names in files are
camelCase. What is unknown, missing or of another type is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Protocol, TypeVar

from rollout.errors import SpecError
from rollout_api.v1alpha1.common import Parameter, ParameterSource

T = TypeVar("T")


class Parametrised(Protocol):
    """Anything of the API with ``parameters`` beside ``parametersFrom``."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Arguments given in the file."""
        ...

    @property
    def parameters_from(self) -> tuple[ParameterSource, ...]:
        """Objects of a cluster that hold further ones."""
        ...


def given_parameters(what: str, holder: Parametrised) -> dict[str, str]:
    """The parameters as text by name. Raises SpecError for sources that only a cluster has."""
    if holder.parameters_from:
        raise SpecError(
            f"{what}: parametersFrom names objects of a cluster; a run on this machine takes parameters"
        )
    return {parameter.name: parameter.value for parameter in holder.parameters}


def read_pair(given: str, option: str, what: str = "VALUE") -> tuple[str, str]:
    """``name=value`` of a command line's option. Raises SpecError."""
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise SpecError(f"{option} {given}: expected NAME={what}")
    return name, value


def known_parameters(kind: type[Any]) -> dict[str, str]:
    """The parameters that a ``kind`` (a dataclass) takes, with their defaults as text; empty where it has none."""
    return {
        _camel(field.name): "" if field.default is MISSING else str(field.default)
        for field in fields(kind)
    }


def parse_parameters(what: str, kind: type[T], given: Mapping[str, str]) -> T:
    """An instance of ``kind`` (a dataclass). ``what`` names the builtin in messages."""
    known = {_camel(field.name): field for field in fields(kind)}  # pyrefly: ignore[bad-argument-type] - every kind is a dataclass
    for name in given:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise SpecError(f"{what}: unknown parameter {name!r}; it takes {listed}")
    for name, field in known.items():
        if name not in given and field.default is MISSING:
            raise SpecError(f"{what}: parameter {name!r} is missing")
    values = {known[name].name: _parse(what, known[name], text) for name, text in given.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise SpecError(f"{what}: {error}") from error


def _parse(what: str, field: Field[Any], text: str) -> Any:
    parser, expected = _PARSERS[str(field.type)]
    try:
        return parser(text.strip()) if parser is not str else text
    except ValueError as error:
        raise SpecError(
            f"{what}: parameter {_camel(field.name)!r}: expected {expected}, got {text!r}"
        ) from error


def _bool(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "an integer"),
    "float": (float, "a number"),
    "bool": (_bool, "true or false"),
    "str": (str, "text"),
}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
