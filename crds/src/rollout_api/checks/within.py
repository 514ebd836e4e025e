"""The models inside a model, each with its path: for rules that hold wherever a type stands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel


def models_within(value: BaseModel, path: str) -> Iterator[tuple[str, BaseModel]]:
    """The model itself and every model below it, in the order of files, with its path as it is written there."""
    left: list[tuple[str, Any]] = [(path, value)]
    while left:
        path, value = left.pop()
        if isinstance(value, BaseModel):
            yield path, value
            left += _fields(value, path)
        else:
            left += [(f"{path}[{index}]", one) for index, one in _reversed_models(value)]


def _fields(model: BaseModel, path: str) -> Iterator[tuple[str, Any]]:
    held = model.__dict__
    for name, alias in _names(type(model)):
        value = held[name]
        if isinstance(value, BaseModel | tuple):
            yield f"{path}.{alias}", value


def _reversed_models(values: tuple[Any, ...]) -> Iterator[tuple[int, Any]]:
    for index in range(len(values) - 1, -1, -1):
        if isinstance(values[index], BaseModel | tuple):
            yield index, values[index]


@cache
def _names(kind: type[BaseModel]) -> tuple[tuple[str, str], ...]:
    """Fields, the last one first, with their names in files."""
    return tuple((name, one.alias or name) for name, one in kind.model_fields.items())[::-1]
