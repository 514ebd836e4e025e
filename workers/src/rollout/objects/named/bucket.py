"""Objects by name in a bucket: trying again, and settling a change whose answer was lost, for every kind of bucket.

Each write carries the id of its writer, so that a look can tell it from another writer's equal bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from rollout.objects.named.contract import (
    NamedEntry,
    NamedObject,
    check_data,
    check_name,
    too_large,
    was_first,
)
from rollout.objects.named.probing import require_conditions
from rollout.objects.retry import Absent, Operation, Patience, Unmet, persist

PROBE_TRIES_MAX = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedState:
    """What is known of an object without its bytes. ``writer`` is empty where somebody else's tool wrote it."""

    tag: str
    writer: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some entries of a list, and where the next page begins; None at the end."""

    entries: tuple[NamedEntry, ...]
    next: str | None


class NamedRemote(Protocol):
    """One prefix of a bucket, with conditions. Thread-safe; every call has a time limit and tries once.

    Raises Transient, Refused, Absent or Unmet (``rollout.objects.retry``).
    """

    @property
    def place(self) -> str:
        """Where it is, for messages; never a secret."""
        ...

    def look(self, key: str) -> NamedState:
        """What is there now. Raises Absent."""
        ...

    def read_named(self, key: str, size_max: int) -> NamedObject | int:
        """Bytes and tag of one state of the object, or its size where that is larger. Raises Absent."""
        ...

    def write_named(self, key: str, data: bytes, tag: str | None, writer: str) -> str:
        """Store while the object is the one of ``tag`` (None: while there is none); the new tag."""
        ...

    def delete_named(self, key: str, tag: str) -> None:
        """Remove the object of ``tag``. Raises Absent or Unmet."""
        ...

    def page(self, prefix: str, after: str | None) -> Page:
        """One page of the objects whose keys begin with ``prefix``, in order; names are keys."""
        ...


class BucketObjects:
    """The objects below one prefix of a bucket, by name. Thread-safe."""

    def __init__(self, remote: NamedRemote, patience: Patience | None = None) -> None:
        self._remote = remote
        self._patience = patience or Patience()

    @property
    def place(self) -> str:
        """The bucket and its prefix."""
        return self._remote.place

    def create(self, name: str, data: bytes) -> str:
        """Store an object where none has the name; its tag. Raises PreconditionFailed where one has."""
        return self._write(check_name(name), check_data(name, data), None)

    def replace(self, name: str, data: bytes, tag: str) -> str:
        """Store other bytes while the object is the one of ``tag``; the new tag. Raises PreconditionFailed."""
        return self._write(check_name(name), check_data(name, data), tag)

    def get(self, name: str, size_max: int) -> NamedObject | None:
        """The object; None where there is none. Raises StoreError for more than ``size_max`` bytes, unread."""
        check_name(name)
        found = self._try(
            "read", name, lambda: _or_none(lambda: self._remote.read_named(name, size_max))
        )
        if isinstance(found, int):
            raise too_large(self.place, name, found, size_max)
        return found

    def entries(self, prefix: str = "") -> Iterator[NamedEntry]:
        """Those whose names begin with ``prefix``, in the order of their names; a page at a time."""
        after: str | None = None
        while True:
            page = self._try("list", prefix, lambda at=after: self._remote.page(prefix, at))
            yield from page.entries
            after = page.next
            if after is None:
                return

    def delete(self, name: str, tag: str) -> None:
        """Remove the object of ``tag``; nothing where there is none. Raises PreconditionFailed for another one."""
        check_name(name)
        try:
            self._try(
                "delete", name, lambda: _or_none(lambda: self._remote.delete_named(name, tag))
            )
        except Unmet as error:
            raise was_first(self.place, name, tag) from error

    def require(self) -> None:
        """Raise PlaceUnreachable where nothing can be written now, or conditions are not kept."""
        require_conditions(
            BucketObjects(self._remote, replace(self._patience, tries_max=PROBE_TRIES_MAX))
        )

    def _write(self, name: str, data: bytes, tag: str | None) -> str:
        writer, tries = uuid.uuid4().hex, 0

        def attempt() -> str:
            nonlocal tries
            tries += 1
            try:
                return self._remote.write_named(name, data, tag, writer)
            except (Unmet, Absent) as error:
                settled = self._settle(name, writer) if tries > 1 else None
                if settled is None:
                    raise Unmet(str(error)) from error
                return settled

        try:
            return self._try("write", name, attempt)
        except Unmet as error:
            raise was_first(self.place, name, tag) from error

    def _settle(self, name: str, writer: str) -> str | None:
        """The tag of what an earlier try of this write has left; None where another's is there."""
        found = _or_none(lambda: self._remote.look(name))
        return found.tag if found is not None and found.writer == writer else None

    def _try(self, verb: str, name: str, attempt: Callable[[], T]) -> T:
        operation = Operation(verb=verb, digest=name, place=self.place)
        return persist(self._patience, operation, attempt)


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Absent:
        return None
