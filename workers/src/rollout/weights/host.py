"""Between a GPU and the host, through pinned memory, which torch keeps for the next time."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rollout.weights.raw import parse_header
from rollout.weights.safetensors import NAMES

_DTYPES = {name: dtype for dtype, name in NAMES.items()}


def host_tensors(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """The same on the CPU: copied once, all at a time, whoever reads them afterwards."""
    devices = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
    if not devices:
        return tensors
    found = {name: _begin(tensor.detach()) for name, tensor in tensors.items()}
    for device in devices:
        torch.cuda.synchronize(device)
    return found


def _begin(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return target.copy_(tensor, non_blocking=True)


def read_tensors(path: Path, *, pinned: bool) -> dict[str, torch.Tensor]:
    """A safetensors file in memory of its own, one piece of it; ``pinned``: from which a GPU copies at full speed.

    Raises OSError, and ValueError on what is no whole safetensors file.
    """
    size = path.stat().st_size
    held = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    with path.open("rb") as file:
        read = file.readinto(held.numpy().data)
    try:
        header, body = parse_header(held.numpy())
        start = size - len(body)
        return {name: _part(held[start:], said) for name, said in header.items()}
    except (KeyError, TypeError, ValueError, RuntimeError, struct.error) as error:
        raise ValueError(f"{path}: {read} bytes, not a whole safetensors file ({error})") from error


def _part(body: torch.Tensor, said: Mapping[str, Any]) -> torch.Tensor:
    start, stop = said["data_offsets"]
    if not 0 <= start <= stop <= len(body):
        raise ValueError(f"offsets {start} to {stop} of {len(body)}")
    return body[start:stop].view(_DTYPES[said["dtype"]]).view(said["shape"])
