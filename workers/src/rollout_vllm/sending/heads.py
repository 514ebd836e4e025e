"""What a safetensors file says of its tensors before their elements."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import torch

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


def safetensors_head(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, bytes]:
    """What comes before the elements, which follow tensor after tensor by name. Raises KeyError for a dtype that no weights have."""
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
