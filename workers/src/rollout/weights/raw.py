"""A safetensors file as flat arrays of raw elements, which may be patched in place. Never loads torch."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollout.errors import StoreError
from rollout.weights.changes import UNSIGNED, Bits

_SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1}
_HEADER_BYTES_MAX = 100 << 20


@contextmanager
def open_raw(path: Path, *, writable: bool = False) -> Iterator[dict[str, Bits]]:
    """Raw elements of every tensor of a safetensors file, mapped. Raises StoreError.

    Do not keep the arrays beyond the block. What is written is in the file when the block ends.
    """
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    try:
        with path.open("r+b" if writable else "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=access)
    except (OSError, ValueError) as error:
        raise StoreError(f"weights {path} cannot be mapped: {error}") from error
    try:
        yield parse_raw(np.frombuffer(mapped, np.uint8), path)
    finally:
        mapped = None  # the arrays hold it; it is unmapped with the last of them


def parse_raw(data: Bits, path: Path) -> dict[str, Bits]:
    """Raw elements of every tensor of a safetensors file that is mapped as ``data``. Raises StoreError that names ``path``."""
    try:
        header, body = parse_header(data)
        return {name: _view(body, item) for name, item in header.items()}
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise StoreError(f"weights {path}: not a whole safetensors file ({error})") from error


def parse_header(data: Bits) -> tuple[dict[str, Any], Bits]:
    """What a safetensors file's bytes say of each tensor, and the bytes that this is about.

    Raises ValueError, TypeError or struct.error on what is none.
    """
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if length > len(data) - 8:
        raise ValueError(f"a header of {length} bytes in {len(data)}")
    header = json.loads(data[8 : 8 + min(length, _HEADER_BYTES_MAX)].tobytes())
    header.pop("__metadata__", None)
    return header, data[8 + length :]


def _view(body: Bits, item: Mapping[str, object]) -> Bits:
    start, stop = item["data_offsets"]  # pyrefly: ignore - two numbers, by the format
    if not 0 <= start <= stop <= body.size:
        raise ValueError(f"offsets {start} to {stop} of {body.size}")
    return body[start:stop].view(UNSIGNED[_SIZES[str(item["dtype"])]])
