"""A user's environment: a class that builds episodes, or the episode's class itself.

An ``EnvBuilder`` has ``build(row)`` and may have ``source(split, seed)`` or ``rows(split)``. A class
with ``start()`` and ``step(reply)`` is taken as one episode and constructed with the row; its ``close()``,
where it has one, is called whatever happened, and from another thread where ``step`` hangs. Messages may be text (a user message), ``{role, content}`` or ``Message``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from rollout.data.fields import ROLES, BadRecord
from rollout.data.hugging_face import jsonable
from rollout.data.mapping import FieldMapping, map_record
from rollout.errors import DataError, SpecError
from rollout.plugins.user_code import refusing_failures
from rollout.seams import DataSource, EnvBuilder, TextEnv
from rollout.types import Message, Row


class RowsSource:
    """Rows held in memory; ``what`` names where they came from in messages."""

    def __init__(self, records: Sequence[Mapping[str, Any]], what: str) -> None:
        self._rows = [_as_row(record, index, what) for index, record in enumerate(records)]
        if not self._rows:
            raise DataError(f"{what} gave no rows")
        content = json.dumps(self._rows, sort_keys=True).encode()
        self.digest = f"blake3:{blake3(content).hexdigest()}"

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions."""
        return [self._rows[position] for position in positions]


def _as_row(record: Mapping[str, Any], index: int, what: str) -> Row:
    try:
        plain = jsonable(record)
        field = "messages" if "messages" in plain else None
        return map_record(FieldMapping(messages_field=field), plain)
    except (BadRecord, AttributeError) as error:
        raise DataError(f"{what}, row {index}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEnv:
    """One episode of a user's class, its messages put into our form."""

    inner: Any
    what: str

    def start(self) -> tuple[Message, ...]:
        """The conversation the policy first sees."""
        return as_messages(self.inner.start(), self.what)

    def step(self, reply: str) -> tuple[tuple[Message, ...], bool]:
        """The user's ``(messages, done)``; only ``True`` or ``False`` means an answer with none."""
        answer = self.inner.step(reply)
        if isinstance(answer, bool):
            return (), answer
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"{self.what}: step() must return (messages, done), got {answer!r:.80}")
        messages, done = answer
        return as_messages(messages, self.what), bool(done)

    def close(self) -> None:
        """The user's ``close``, where there is one."""
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginBuilder:
    """Wraps what the user's class gave. ``made`` is a builder, or the class of an episode."""

    made: Any
    parameters: Mapping[str, str]
    what: str

    def source(self, split: str, seed: int) -> DataSource | None:
        """The user's ``source`` or ``rows``, or None."""
        if hasattr(self.made, "source"):
            return self.made.source(split, seed)
        if hasattr(self.made, "rows"):
            return RowsSource(self.made.rows(split), f"{self.what}.rows({split!r})")
        return None

    def build(self, row: Row) -> TextEnv:
        """The episode of one row, which is its own: what it changes in it no other sees."""
        row = deepcopy(row)
        inner = (
            self.made(row, **self.parameters)
            if isinstance(self.made, type)
            else self.made.build(row)
        )
        return PluginEnv(inner=inner, what=self.what)


def wrap_class(found: Any, parameters: Mapping[str, str], what: str) -> EnvBuilder:
    """An EnvBuilder from a user's class. Raises SpecError when it has neither set of methods."""
    if hasattr(found, "build"):
        with refusing_failures(f"{what}: cannot be built"):
            made = found(**parameters)
        return PluginBuilder(made=made, parameters=parameters, what=what)
    if hasattr(found, "start") and hasattr(found, "step"):
        return PluginBuilder(made=found, parameters=parameters, what=what)
    raise SpecError(
        f"{what}: expected a class with build(row), or with start() and step(reply); "
        f"got {type(found).__name__}"
    )


def as_messages(given: Any, what: str) -> tuple[Message, ...]:
    """Text, a mapping, a Message or a sequence of them, as messages. Raises TypeError."""
    items = [given] if isinstance(given, str | Mapping | Message) else given
    if not isinstance(items, Sequence):
        raise TypeError(f"{what}: expected messages, got {type(items).__name__}")
    return tuple(_as_message(item, what) for item in items)


def _as_message(item: Any, what: str) -> Message:
    if isinstance(item, Message):
        return item
    if isinstance(item, str):
        return Message(role="user", content=item)
    if isinstance(item, Mapping) and item.get("role") in ROLES and _has_text(item):
        return Message(role=item["role"], content=item["content"])
    raise TypeError(f"{what}: expected text or {{role, content}}, got {item!r:.80}")


def _has_text(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("content"), str)
