"""A user's environment: a class that builds episodes, or the episode's class itself.

A builder has ``build(row)`` and may have ``source(split, seed)`` or ``rows(split)``. A class with ``start`` and
``step`` is taken as one episode and constructed with the row. Where ``step`` is ``async`` it is an ``Env`` and runs in
the actor's event loop; plain functions (``TextEnv``) run in threads and may block. Its ``close``, where it has one, is
called whatever happened, and from another thread where ``step`` hangs. A class that says ``uses_memory = True`` is
given ``memory=`` (``seams.Memory``), a builder with each row. Messages may be text (a user message),
``{role, content}`` or ``Message``; images and audio are refused by name.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from rollout.data.hugging_face import jsonable
from rollout.data.rows.fields import ROLES, BadRecord
from rollout.data.rows.mapping import FieldMapping, map_record
from rollout.environments.memory import USES_MEMORY, EpisodeMemory
from rollout.environments.threads import THREADS
from rollout.errors import DataError, InfrastructureError, SpecError
from rollout.plugins.user_code import refusing_failures
from rollout.seams import DataSource, Env, Memory
from rollout.turns import Action, Ending, State
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


class PluginEnv:
    """One episode of a user's class: a text environment in threads of its own, or an ``Env`` that is what it says.

    The user's object is made with the start, by ``make``; a text environment's functions may block.
    """

    def __init__(self, make: Callable[[], Any], what: str) -> None:
        self._make, self._what = make, what
        self._inner: Any = None
        self._closed = False

    async def start(self) -> State:
        """The conversation the policy first sees."""
        begun = await THREADS.call(self._begin)
        if not isinstance(begun, tuple):
            begun = await begun
            if not isinstance(begun, State):
                raise TypeError(f"{self._what}: start() must return a State, got {begun!r:.80}")
            return begun
        return State(messages=begun)

    async def step(self, action: Action) -> State | Ending:
        """What the user's ``step`` says: a State or an Ending, or of a text environment ``(messages, done)``."""
        if _is_async(self._inner):
            answer = await self._inner.step(action)
            if not isinstance(answer, State | Ending):
                raise TypeError(
                    f"{self._what}: step() must return a State or an Ending, got {answer!r:.80}"
                )
            return answer
        added, done = await THREADS.call(lambda: self._hear(action.text))
        return Ending() if done else State(messages=added)

    async def close(self) -> None:
        """The user's ``close``, where there is one and the object was made; once."""
        close = getattr(self._inner, "close", None)
        if self._closed or close is None:
            self._closed = True
            return
        self._closed = True
        if inspect.iscoroutinefunction(close):
            await close()
        else:
            await THREADS.call(close)

    def _begin(self) -> Any:
        """In a thread: make the object, and start it where that blocks; of an Env the coroutine of its start."""
        inner = self._make()
        self._inner = inner
        if self._closed:  # it took so long to be made that nobody is left to close it
            getattr(inner, "close", lambda: None)()
            raise InfrastructureError("nobody waits for this environment any more")
        if _is_async(inner):
            return inner.start()
        return as_messages(inner.start(), self._what)

    def _hear(self, reply: str) -> tuple[tuple[Message, ...], bool]:
        """The user's ``(messages, done)``; only ``True`` or ``False`` means an answer with none."""
        answer = self._inner.step(reply)
        if isinstance(answer, bool):
            return (), answer
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(
                f"{self._what}: step() must return (messages, done), got {answer!r:.80}"
            )
        messages, done = answer
        return as_messages(messages, self._what), bool(done)


def _is_async(inner: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(inner, "step", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginBuilder:
    """Wraps what the user's class gave. ``made`` is a builder, or the class of an episode."""

    made: Any
    parameters: Mapping[str, str]
    """As the spec has them; texts."""
    what: str
    """Names the class in messages."""

    def source(self, split: str, seed: int) -> DataSource | None:
        """The user's ``source`` or ``rows``, or None."""
        if hasattr(self.made, "source"):
            return self.made.source(split, seed)
        if hasattr(self.made, "rows"):
            return RowsSource(self.made.rows(split), f"{self.what}.rows({split!r})")
        return None

    @property
    def uses_memory(self) -> bool:
        """Whether the user's class declares it."""
        return bool(getattr(self.made, USES_MEMORY, False))

    async def asks_memory(self) -> bool:
        """The same."""
        return self.uses_memory

    def build(self, row: Row) -> Env:
        """As ``build_with_memory``, with a memory of nothing, which nobody keeps."""
        return self.build_with_memory(row, EpisodeMemory())

    def build_with_memory(self, row: Row, memory: Memory) -> Env:
        """The episode of one row, which is its own: what it changes in it no other sees."""
        row = deepcopy(row)
        given = {"memory": memory} if self.uses_memory else {}
        if isinstance(self.made, type):
            return PluginEnv(lambda: self.made(row, **given, **self.parameters), self.what)
        return PluginEnv(lambda: self.made.build(row, **given), self.what)


def wrap_class(found: Any, parameters: Mapping[str, str], what: str) -> PluginBuilder:
    """An EnvBuilder from a user's class. Raises SpecError when it has neither set of methods."""
    if getattr(found, USES_MEMORY, False) and "memory" in parameters:
        raise SpecError(
            f"{what}: it declares {USES_MEMORY}, and is given its memory as 'memory': give the parameter another name"
        )
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
    if isinstance(item, Mapping) and item.get("role") in ROLES and (kind := _first_media(item)):
        raise TypeError(
            f"{what}: a message has a part {kind!r}; images and audio are not trained on"
        )
    raise TypeError(f"{what}: expected text or {{role, content}}, got {item!r:.80}")


def _has_text(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("content"), str)


def _first_media(item: Mapping[str, Any]) -> str | None:
    """The type of the first part that is no text, of a message whose content is a list of parts."""
    content = item.get("content")
    parts = content if isinstance(content, list | tuple) else ()
    kinds = (str(part.get("type")) for part in parts if isinstance(part, Mapping))
    return next((kind for kind in kinds if "image" in kind or "audio" in kind), None)
