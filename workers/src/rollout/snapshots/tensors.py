"""The tensors of a safetensors object, each with its own digest: damage is told by the tensor, not by the file.

Reads the format itself and loads nothing. Refuses headers that do not cover their file: they are read from anywhere.
"""

from __future__ import annotations

import json
import mmap
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from blake3 import blake3

from rollout.common.bounded import UNREADABLE
from rollout.errors import StoreError
from rollout.ledger.records import Record
from rollout.objects.bulk import THREADS_MAX

HEADER_BYTES_MAX = 128 << 20
_LENGTH_BYTES = 8
HEADER = "(header)"


class TensorDigest(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes ``[start, stop)`` of an object, which are one tensor's or its header's."""

    name: str
    start: int
    stop: int
    blake3: str


TensorIndex = dict[str, tuple[TensorDigest, ...]]
"""By the name of a layer's part."""


def index_tensors(path: Path) -> tuple[TensorDigest, ...] | None:
    """The tensors of a file, None where it is no safetensors file. Raises OSError."""
    spans = _read_spans(path)
    if spans is None:
        return None
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
        ThreadPoolExecutor(THREADS_MAX) as pool,
    ):
        return tuple(pool.map(partial(_digest, view), spans))


def find_damaged(path: Path, tensors: tuple[TensorDigest, ...]) -> list[str]:
    """The names of tensors whose bytes are not those of their digest. Raises OSError."""
    damaged = []
    with path.open("rb") as file:
        for one in tensors:
            file.seek(one.start)
            hasher, left = blake3(), one.stop - one.start
            while left and (chunk := file.read(min(left, 1 << 20))):
                hasher.update(chunk)
                left -= len(chunk)
            if left or hasher.hexdigest() != one.blake3:
                damaged.append(one.name)
    return damaged


def encode_index(index: TensorIndex) -> bytes:
    """The object that holds an index."""
    return msgspec.msgpack.encode(index, order="deterministic")


def decode_index(data: bytes) -> TensorIndex:
    """The index of an object. Raises StoreError for what is none."""
    try:
        return msgspec.msgpack.decode(data, type=TensorIndex)
    except (msgspec.ValidationError, *UNREADABLE) as error:
        raise StoreError(f"not an index of tensors: {error}") from error


def _digest(view: memoryview, span: tuple[str, int, int]) -> TensorDigest:
    name, start, stop = span
    with view[start:stop] as part:
        return TensorDigest(name=name, start=start, stop=stop, blake3=blake3(part).hexdigest())


def _read_spans(path: Path) -> list[tuple[str, int, int]] | None:
    """(tensor, start, stop), the header first, where they cover the file without a gap; else None."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        begin = _LENGTH_BYTES + length
        if not 2 <= length <= HEADER_BYTES_MAX or begin > size:
            return None
        text = file.read(length)
    try:
        header = json.loads(text)
        spans = sorted(
            (one["data_offsets"][0] + begin, one["data_offsets"][1] + begin, name)
            for name, one in header.items()
            if name != "__metadata__"
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None
    reached = begin
    for start, stop, _ in spans:
        if start != reached or not start <= stop <= size:
            return None
        reached = stop
    named = [(name, start, stop) for start, stop, name in spans]
    return [(HEADER, 0, begin), *named] if reached == size else None
