"""Small objects that have a name and may change: catalogues, manifests, leases. One contract for every place.

Every change is conditional, so that of several writers one wins and the others are told: an object is made only
where none is, and replaced or deleted only while it is the one that was read. What it was is a ``tag``, which only
the place that gave it understands. Large bytes are no matter of this contract: they are named by their digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from rollout.errors import PreconditionFailed, StoreError

NAMED_BYTES_MAX = 64 << 20
"""The largest object: it goes up in one request, and is held in memory."""
NAME_CHARACTERS_MAX = 512
RESERVED = ("blake3", "staging")
"""First parts of names that an object store of the same root keeps for itself."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObject:
    """An object as it was read: its bytes, and the tag of just these."""

    data: bytes
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEntry:
    """An object in a list. ``modified_seconds`` is Unix time by the place's own clock."""

    name: str
    tag: str
    size_bytes: int
    modified_seconds: float


class NamedObjects(Protocol):
    """The objects below one root. Thread-safe. A name is ``part/part/...``; none is the folder of another.

    Every call may raise StoreError; those that change something raise PreconditionFailed when somebody else was first.
    A change whose answer was lost is settled by a look: it is reported done where this very write is there.
    """

    @property
    def place(self) -> str:
        """Where they are, for messages; never a secret."""
        ...

    def create(self, name: str, data: bytes) -> str:
        """Store an object where none has the name; its tag. Raises PreconditionFailed where one has."""
        ...

    def replace(self, name: str, data: bytes, tag: str) -> str:
        """Store other bytes while the object is the one of ``tag``; the new tag. Raises PreconditionFailed."""
        ...

    def get(self, name: str, size_max: int) -> NamedObject | None:
        """The object; None where there is none. Raises StoreError for more than ``size_max`` bytes, unread."""
        ...

    def entries(self, prefix: str = "") -> Iterator[NamedEntry]:
        """Those whose names begin with ``prefix``, in the order of their names; read while they are asked for."""
        ...

    def delete(self, name: str, tag: str) -> None:
        """Remove the object of ``tag``; nothing where there is none. Raises PreconditionFailed for another one."""
        ...

    def require(self) -> None:
        """Raise PlaceUnreachable where nothing can be written now, or conditions are not kept."""
        ...


def check_name(name: str) -> str:
    """The name. Raises ValueError for what is no path of plain parts: letters, digits, ``._=-``."""
    parts = name.split("/")
    plain = all(_PART.fullmatch(part) for part in parts)
    if not plain or len(name) > NAME_CHARACTERS_MAX or parts[0] in RESERVED:
        raise ValueError(
            f"expected a name such as catalogue/run-1.json, of parts of letters, digits and ._=-, not below"
            f" {' or '.join(RESERVED)}, got {name!r}"
        )
    return name


def check_data(name: str, data: bytes) -> bytes:
    """The bytes. Raises ValueError where they are too many for an object of a name."""
    if len(data) > NAMED_BYTES_MAX:
        raise ValueError(
            f"{name}: {len(data):,} bytes, a named object has {NAMED_BYTES_MAX:,} at most"
        )
    return data


def too_large(place: str, name: str, size_bytes: int, size_max: int) -> StoreError:
    """The error of an object that is larger than its reader takes."""
    return StoreError(
        f"{place}: {name} has {size_bytes:,} bytes, expected {size_max:,} at most; it is not what this"
        " version writes there"
    )


def was_first(place: str, name: str, tag: str | None) -> PreconditionFailed:
    """The error of a change that met another object than it expected; ``tag`` None: it expected none."""
    expected = "none of the name" if tag is None else "the one that was read"
    return PreconditionFailed(
        f"{place}: {name}: expected {expected}, and another writer was first; read it again"
    )
