"""Tensors written to safetensors files one after the other, in shards of a bounded size. Never loads torch.

Holds one tensor at a time, whatever the model's size. Each one's digest is that of ``rollout_vllm.digest``,
so that tensors which go out as they were stored hash to the digest of their weight version.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from blake3 import blake3

from rollout.weights.changes import Bits
from rollout.weights.numbers import TensorInfo
from rollout.weights.raw import open_raw

INDEX_SUFFIX = ".safetensors.index.json"
_ALIGNMENT = 8
_SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1}
_TORCH = {
    "F64": "torch.float64",
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "I64": "torch.int64",
    "I32": "torch.int32",
    "U8": "torch.uint8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A tensor to be written; ``read`` gives its raw elements when its turn comes."""

    info: TensorInfo
    read: Callable[[], Bits]


def num_elements(info: TensorInfo) -> int:
    """How many numbers a tensor has."""
    return math.prod(info.shape)


def num_bytes(info: TensorInfo) -> int:
    """How many bytes its numbers take. Raises KeyError for a format that no weights have."""
    return num_elements(info) * _SIZES[info.dtype]


def digest_raw(info: TensorInfo, bits: Bits) -> bytes:
    """``rollout_vllm.digest.digest_tensor`` of raw elements."""
    head = f"{info.name}|{_TORCH[info.dtype]}|{tuple(info.shape)}|".encode()
    return blake3(head).update(bits.view(np.uint8).data).digest()


def combine_raw(digests: Mapping[str, bytes]) -> str:
    """``rollout_vllm.digest.combine_digests``."""
    root = blake3()
    for name in sorted(digests):
        root.update(digests[name])
    return f"blake3:{root.hexdigest()}"


def plan_shards(tensors: Sequence[Outgoing], size_max: int) -> list[list[Outgoing]]:
    """The tensors in files of ``size_max`` bytes at most; a larger tensor has a file of its own."""
    shards: list[list[Outgoing]] = []
    size = 0
    for tensor in tensors:
        own = num_bytes(tensor.info)
        if not shards or size + own > size_max:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += own
    return shards


def write_shards(
    folder: Path, tensors: Sequence[Outgoing], *, stem: str, size_max: int
) -> dict[str, bytes]:
    """Write ``<stem>.safetensors``, or numbered shards with their index; the digest of each tensor.

    The files are as transformers names them. Raises OSError.
    """
    shards = plan_shards(tensors, size_max)
    names = [_file_name(stem, number, len(shards)) for number in range(1, len(shards) + 1)]
    digests: dict[str, bytes] = {}
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("xb") as file:
            digests |= _write(file, shard)
    if len(shards) > 1:
        places = {one.info.name: n for n, shard in zip(names, shards, strict=True) for one in shard}
        _write_index(folder / f"{stem}{INDEX_SUFFIX}", tensors, places)
    return digests


def digest_file(path: Path, infos: Mapping[str, TensorInfo]) -> dict[str, bytes]:
    """The digest of each tensor of a file. Raises StoreError."""
    with open_raw(path) as tensors:
        return {name: digest_raw(infos[name], bits) for name, bits in tensors.items()}


def _file_name(stem: str, number: int, total: int) -> str:
    shard = f"-{number:05d}-of-{total:05d}" if total > 1 else ""
    return f"{stem}{shard}.safetensors"


def _write(file: BinaryIO, tensors: Sequence[Outgoing]) -> dict[str, bytes]:
    file.write(_header([one.info for one in tensors]))
    digests: dict[str, bytes] = {}
    for one in tensors:
        bits = one.read()
        digests[one.info.name] = digest_raw(one.info, bits)
        file.write(bits.view(np.uint8).data)
    return digests


def _header(infos: Sequence[TensorInfo]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for info in infos:
        stop = start + num_bytes(info)
        header[info.name] = {
            "dtype": info.dtype,
            "shape": list(info.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _write_index(path: Path, tensors: Sequence[Outgoing], places: Mapping[str, str]) -> None:
    infos = [one.info for one in tensors]
    metadata = {
        "total_parameters": sum(map(num_elements, infos)),
        "total_size": sum(map(num_bytes, infos)),
    }
    text = json.dumps({"metadata": metadata, "weight_map": dict(sorted(places.items()))}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
