"""Reads YAML that somebody else has written: no aliases, few levels, few nodes, and every problem has its line.

An alias makes a file of a kilobyte a value of gigabytes; a manifest needs none. What is counted is counted while
it is parsed, before anything is built of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, RoundTripConstructor, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.parser import Parser, RoundTripParser

from rollout.errors import SpecError

NODES_MAX = 50_000
DEPTH_MAX = 64
DOCUMENTS_MAX = 1000
NUMBER_DIGITS_MAX = 64
_LONG_NUMBER = re.compile(rf"[-+]?[0-9][0-9a-fA-FoxOX_:.]{{{NUMBER_DIGITS_MAX},}}")
_BROKEN = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, NotImplementedError)
"""What ruamel lets out of a scalar that looks like a date, a number or an encoded text and is none."""


class _RefusedError(MarkedYAMLError):
    """A bound of ours, as YAML's own errors carry their place."""


class _Bound:
    """Counts what a parser has told of."""

    def __init__(self) -> None:
        self.depth = self.nodes = self.documents = 0

    def count(self, event: Any) -> None:
        """Raise MarkedYAMLError for an alias and past a bound."""
        self.nodes += isinstance(event, NodeEvent)
        self.depth += isinstance(event, CollectionStartEvent)
        self.depth -= isinstance(event, CollectionEndEvent)
        self.documents += isinstance(event, DocumentStartEvent)
        if isinstance(event, AliasEvent):
            _refuse(event, f"*{event.anchor} is an alias; write what it stands for")
        if self.nodes > NODES_MAX:
            _refuse(event, f"more than {NODES_MAX} values in one file; split it")
        if self.depth > DEPTH_MAX:
            _refuse(event, f"more than {DEPTH_MAX} levels of nesting")
        if self.documents > DOCUMENTS_MAX:
            _refuse(event, f"more than {DOCUMENTS_MAX} documents in one file; split it")
        if isinstance(event, ScalarEvent) and not event.style and _is_long_number(event.value):
            _refuse(event, f"a number of more than {NUMBER_DIGITS_MAX} digits; quote what is text")


def _is_long_number(value: Any) -> bool:
    return isinstance(value, str) and _LONG_NUMBER.fullmatch(value) is not None


def _refuse(event: Any, problem: str) -> None:
    raise _RefusedError(None, None, problem, event.start_mark)


class _Bounded:
    """Counts what a parser of ruamel's finds; stands before it among its bases."""

    def __init__(self, loader: Any) -> None:
        cast("Any", super()).__init__(loader)
        self._bound = _Bound()

    def get_event(self) -> Any:
        event = cast("Any", super()).get_event()
        self._bound.count(event)
        return event


class _BoundedRoundTrip(_Bounded, RoundTripParser):
    pass


class _BoundedPlain(_Bounded, Parser):
    pass


def _place(construct: Callable[..., Any], node: Any, *, deep: bool) -> Any:
    try:
        return construct(node, deep=deep)
    except _BROKEN as error:
        problem = f"{type(error).__name__}: {error!s:.160}"
        raise ConstructorError(None, None, problem, node.start_mark) from error


class _PlacedRoundTrip(RoundTripConstructor):
    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - theirs
        return _place(super().construct_object, node, deep=deep)


class _PlacedPlain(SafeConstructor):
    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - theirs
        return _place(super().construct_object, node, deep=deep)


def round_trip() -> YAML:
    """A reader that keeps comments, order and lines; bounded."""
    yaml = YAML(typ="rt", pure=True)
    yaml.Parser, yaml.Constructor = _BoundedRoundTrip, _PlacedRoundTrip
    return yaml


def load_all(yaml: YAML, name: str, text: str) -> list[Any]:
    """All documents of a text, by a reader of this module. Raises SpecError with ``name:line``."""
    try:
        return list(yaml.load_all(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{name}:{mark.line + 1}" if mark is not None else name
        problem = str(error.problem or error.context).split("\n", maxsplit=1)[0]
        said = problem if isinstance(error, _RefusedError) else f"not valid YAML: {problem}"
        raise SpecError(f"{place}: {said}") from error
    except YAMLError as error:
        raise SpecError(f"{name}: not valid YAML: {error}") from error
    except _BROKEN as error:
        problem = f"{type(error).__name__}: {error!s:.160}"
        raise SpecError(f"{name}: not valid YAML: {problem}") from error


def load_plain(name: str, text: str) -> Any:
    """One document as plain data, None where there is none. Raises SpecError."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Parser, yaml.Constructor = _BoundedPlain, _PlacedPlain
    found = load_all(yaml, name, text)
    if len(found) > 1:
        raise SpecError(f"{name}: expected one YAML document, got {len(found)}")
    return found[0] if found else None
