"""What a safetensors file says of its tensors, and their raw elements as numbers and back. Never loads torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout.errors import StoreError
from rollout.weights.changes import Bits

_BF16_SHIFT = 16
_BF16_NAN = np.uint32(0x7FC0)
_HEADER_BYTES_MAX = 100 << 20
FLOATS = {"Float32": "F32", "BFloat16": "BF16"}
"""The format's names of the API's number formats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """What a safetensors header says of one tensor: the format's name of its numbers (``F16``), its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def read_tensors(path: Path) -> Mapping[str, TensorInfo]:
    """Every tensor of a safetensors file, by name. Raises StoreError for what is none."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, _HEADER_BYTES_MAX)))
        return {
            name: TensorInfo(
                name=name, dtype=str(one["dtype"]), shape=tuple(map(int, one["shape"]))
            )
            for name, one in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise StoreError(f"weights {path}: not a whole safetensors file ({error})") from error


def to_floats(bits: Bits, of: TensorInfo) -> np.ndarray:
    """The numbers as float32. Raises StoreError for numbers that no adapter can be added to."""
    if of.dtype == "F32":
        return bits.view(np.float32)
    if of.dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    if of.dtype == "BF16":
        return (bits.astype(np.uint32) << _BF16_SHIFT).view(np.float32)
    raise StoreError(
        f"{of.name} holds {of.dtype}; an adapter is merged into F32, F16 or BF16 numbers: load the run's "
        "folder adapter/ with PEFT instead"
    )


def to_bits(values: np.ndarray, like: TensorInfo) -> Bits:
    """Raw numbers in the format of ``like``, the nearest ones, ties to even."""
    if like.dtype == "F16":
        return values.astype(np.float16).view(np.uint16)
    raw = values.astype(np.float32).view(np.uint32)
    if like.dtype == "F32":
        return raw
    rounded = (raw + np.uint32(0x7FFF) + ((raw >> _BF16_SHIFT) & 1)) >> _BF16_SHIFT
    # The addition would carry a NaN over into zero.
    return np.where(np.isnan(values), _BF16_NAN, rounded).astype(np.uint16)
