"""Tensors as the bytes of a safetensors file, without a copy of them.

``safetensors.torch.save`` copies every tensor twice; at each step of a run that is most of the time
that publishing takes. The format is a length, a JSON header and the raw tensors, one after the other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import torch

from rollout.weights.changes import UNSIGNED, Bits

NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
"""What the format calls the types of numbers that weights have."""
_ALIGNMENT = 8


def safetensors_parts(tensors: Mapping[str, torch.Tensor]) -> list[bytes | memoryview]:
    """The file's bytes in parts, tensors by name: equal tensors, equal bytes.

    The parts look into the tensors' own memory where these are contiguous and on the CPU: do not
    change them before the parts are written. Raises KeyError for a dtype that no weights have.
    """
    ordered = [tensors[name].detach().cpu().contiguous() for name in sorted(tensors)]
    raw = [tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in ordered]
    return [*safetensors_head(tensors), *raw]


def safetensors_head(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, bytes]:
    """What comes before the elements, which follow tensor after tensor by name. Raises KeyError as the parts do."""
    ordered = [(name, tensors[name]) for name in sorted(tensors)]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in ordered:
        stop = start + tensor.nbytes
        shape, offsets = list(tensor.shape), [start, stop]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": offsets}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)), text


def raw_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, Bits]:
    """Raw elements of each tensor; a view where the tensor is contiguous and on the CPU."""
    return {name: _raw(tensor) for name, tensor in tensors.items()}


def _raw(tensor: torch.Tensor) -> Bits:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(UNSIGNED[tensor.element_size()])
