"""The digest of a weight version: a hash over tensors, not over a file.

The learner computes it when it publishes, an engine computes it over the tensors that it hands to
its loader; a load is accepted where they are equal. Layout and order of a file do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from blake3 import blake3

LARGE_BYTES = 4 << 20
"""From here on it is worth hashing one piece on several threads."""


def digest_tensor(name: str, tensor: torch.Tensor) -> bytes:
    """32 bytes over name, dtype, shape and raw little-endian content of one tensor."""
    flat = tensor.detach().cpu().contiguous()
    head = tensor_head(name, flat)
    body = flat.reshape(-1).view(torch.uint8).numpy().data
    return new_hasher(len(body)).update(head).update(body).digest()


def tensor_head(name: str, tensor: torch.Tensor) -> bytes:
    """What is hashed before a tensor's content."""
    return f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode()


def new_hasher(num_bytes: int) -> blake3:
    """For so many bytes in one piece; how many threads hash them enters no digest."""
    return blake3(max_threads=blake3.AUTO if num_bytes >= LARGE_BYTES else 1)


def combine_digests(digests: Mapping[str, bytes]) -> str:
    """``blake3:<hex>`` of a whole version from the ``digest_tensor`` of each of its tensors."""
    root = blake3()
    for name in sorted(digests):
        root.update(digests[name])
    return f"blake3:{root.hexdigest()}"
