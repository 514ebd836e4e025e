"""What environments keep between episodes, as plain data: an entry by key, its value as JSON, perhaps a vector.

Pure. A write takes the place of its key's entry, and one of ``null`` takes the entry away; past ENTRIES_MAX the entry
goes that was written longest ago. Which writes count, and in which order, is the ledger's (``ledger.sql.memory``).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rollout.errors import MemoryRefused

ENTRIES_MAX = 4096
"""Entries of a run."""
WRITES_MAX = 16
"""Keys that one episode may write."""
KEY_BYTES_MAX = 256
"""UTF-8 of one key."""
VALUE_BYTES_MAX = 4096
"""One value as JSON."""
DIMENSION_MAX = 256
"""Numbers of one vector."""
DEPTH_MAX = 16
"""Lists and objects around the innermost part of a value."""
NUMBER_BYTES = 8
INT_MAX = 1 << 63
NOTHING = "null"
"""The value of a write that takes its entry away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWrite:
    """One key that an episode wrote, as it was at its end."""

    key: str
    """Printable, at most KEY_BYTES_MAX."""
    value: str
    """As ``encode_value`` writes it; NOTHING: the entry is taken away."""
    vector: bytes = b""
    """Numbers of 8 bytes (float64, little-endian), at most DIMENSION_MAX; empty: found by its key only."""


class Keyed(Protocol):
    """A write, wherever it lies."""

    @property
    def key(self) -> str:
        """As in ``MemoryWrite``."""
        ...

    @property
    def value(self) -> str:
        """As in ``MemoryWrite``."""
        ...

    @property
    def vector(self) -> bytes:
        """As in ``MemoryWrite``."""
        ...


K = TypeVar("K", bound=Keyed)


def apply_writes(entries: dict[str, K], writes: Iterable[K]) -> None:
    """Change ``entries`` by writes in their order: the entry that was written last stands last."""
    for write in writes:
        entries.pop(write.key, None)
        if write.value != NOTHING:
            entries[write.key] = write
            if len(entries) > ENTRIES_MAX:
                del entries[next(iter(entries))]


def encode_value(value: Any) -> str:
    """A plain value as JSON, equal values as equal text. Raises MemoryRefused for what is not plain, too deep or too large."""
    _check_plain(value, DEPTH_MAX)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    if len(text) > VALUE_BYTES_MAX:
        raise MemoryRefused(
            f"a value of {len(text)} bytes of JSON: expected {VALUE_BYTES_MAX} at most"
        )
    return text


def _check_plain(value: Any, depth: int) -> None:
    if depth < 0:
        raise MemoryRefused(f"a value of more than {DEPTH_MAX} lists and objects in each other")
    if isinstance(value, list | tuple):
        for item in value:
            _check_plain(item, depth - 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise MemoryRefused(f"an object of a value has the key {key!r:.80}: expected text")
            _check_plain(item, depth - 1)
    elif not (value is None or isinstance(value, str | bool) or _is_number(value)):
        raise MemoryRefused(
            f"a value holds {value!r:.80} ({type(value).__name__}): expected text, finite numbers of at most 64"
            " bits, true, false, null, lists and objects"
        )


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return -INT_MAX <= value < INT_MAX
    return type(value) is float and math.isfinite(value)


def decode_value(text: str) -> Any:
    """What ``encode_value`` was given; tuples come back as lists."""
    return json.loads(text)


def encode_vector(vector: Sequence[float]) -> bytes:
    """The bytes of a vector. Raises MemoryRefused for one without a direction, or of other than 1 to DIMENSION_MAX finite numbers."""
    if not 1 <= len(vector) <= DIMENSION_MAX:
        raise MemoryRefused(
            f"a vector of {len(vector)} numbers: expected 1 to {DIMENSION_MAX} of them"
        )
    try:
        packed = struct.pack(f"<{len(vector)}d", *vector)
    except (struct.error, OverflowError) as error:
        raise MemoryRefused(f"a vector is no list of numbers: {error}") from error
    _check_vector(packed)
    return packed


def decode_vector(packed: bytes) -> tuple[float, ...]:
    """What ``encode_vector`` was given; nothing of an empty one."""
    return struct.unpack(f"<{len(packed) // NUMBER_BYTES}d", packed)


def _check_vector(packed: bytes) -> None:
    size, rest = divmod(len(packed), NUMBER_BYTES)
    if rest or size > DIMENSION_MAX:
        raise MemoryRefused(
            f"a vector of {len(packed)} bytes: expected 1 to {DIMENSION_MAX} numbers of {NUMBER_BYTES}"
        )
    numbers = struct.unpack(f"<{size}d", packed)
    if not all(map(math.isfinite, numbers)) or not any(numbers):
        raise MemoryRefused("a vector has no direction: expected finite numbers, not all of them 0")


def check_key(key: object) -> None:
    """Raise MemoryRefused for what is no key."""
    if not isinstance(key, str) or not key or not key.isprintable():
        raise MemoryRefused(f"key {key!r:.80}: expected printable text that is not empty")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise MemoryRefused(f"key {key!r:.80}: expected at most {KEY_BYTES_MAX} bytes of UTF-8")


def find_wrong_writes(writes: Sequence[MemoryWrite]) -> str:
    """What is wrong with the writes of one episode, as they came from another process; empty: nothing."""
    if not 1 <= len(writes) <= WRITES_MAX:
        return f"{len(writes)} writes into memory: expected 1 to {WRITES_MAX}"
    keys = [write.key for write in writes]
    if keys != sorted(set(keys)):
        return "writes into memory: expected each key once, in order"
    try:
        for write in writes:
            check_write(write)
    except MemoryRefused as error:
        return f"a write into memory: {error}"
    return ""


def check_write(write: Keyed) -> None:
    """Raise MemoryRefused for a write that no environment could have made."""
    check_key(write.key)
    if write.vector:
        _check_vector(write.vector)
    if len(write.value) > VALUE_BYTES_MAX:
        raise MemoryRefused(
            f"a value of {len(write.value)} bytes: expected {VALUE_BYTES_MAX} at most"
        )
    try:
        same = encode_value(json.loads(write.value)) == write.value
    except (ValueError, RecursionError) as error:
        raise MemoryRefused(f"a value is no JSON: {error}") from error
    if not same:
        raise MemoryRefused("a value is not written as it would be here")
