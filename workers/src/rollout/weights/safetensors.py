"""Tensors as the bytes of a safetensors file, without a copy of them.

``safetensors.torch.save`` copies every tensor twice; at each step of a run that is most of the time
that publishing takes. The format is a length, a JSON header and the raw tensors, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rollout.weights.changes import UNSIGNED, Bits
from rollout_vllm.sending.heads import safetensors_head


def safetensors_parts(tensors: Mapping[str, torch.Tensor]) -> list[bytes | memoryview]:
    """The file's bytes in parts, tensors by name: equal tensors, equal bytes.

    The parts look into the tensors' own memory where these are contiguous and on the CPU: do not
    change them before the parts are written. Raises KeyError for a dtype that no weights have.
    """
    ordered = [tensors[name].detach().cpu().contiguous() for name in sorted(tensors)]
    raw = [tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in ordered]
    return [*safetensors_head(tensors), *raw]


def raw_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, Bits]:
    """Raw elements of each tensor; a view where the tensor is contiguous and on the CPU."""
    return {name: _raw(tensor) for name, tensor in tensors.items()}


def _raw(tensor: torch.Tensor) -> Bits:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(UNSIGNED[tensor.element_size()])
