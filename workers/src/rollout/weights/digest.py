"""The digest of a weight version: a hash over tensors, not over a file.

The learner computes it when it publishes, an engine computes it over the tensors that it hands to
its loader; equality is check (a) of protocol section 9. Layout and order of a file do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from blake3 import blake3
from safetensors.torch import load_file, save_file


def digest_tensor(name: str, tensor: torch.Tensor) -> bytes:
    """32 bytes over name, dtype, shape and raw little-endian content of one tensor."""
    flat = tensor.detach().cpu().contiguous()
    head = f"{name}|{flat.dtype}|{tuple(flat.shape)}|".encode()
    body = flat.reshape(-1).view(torch.uint8).numpy().data
    return blake3(head).update(body).digest()


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """``blake3:<hex>`` over all tensors, by sorted name."""
    return combine_digests({name: digest_tensor(name, tensors[name]) for name in tensors})


def combine_digests(digests: Mapping[str, bytes]) -> str:
    """``blake3:<hex>`` of a whole version from the ``digest_tensor`` of each of its tensors."""
    root = blake3()
    for name in sorted(digests):
        root.update(digests[name])
    return f"blake3:{root.hexdigest()}"


def save_weights(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file readable by another user, names sorted so that equal content is equal bytes."""
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    save_file(ordered, path, metadata={"format": "pt"})
    path.chmod(0o644)


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file into CPU tensors."""
    return load_file(path)
