"""The digest of a weight version: a hash over tensors, not over a file.

The learner computes it when it publishes, an engine computes it over the tensors that it hands to
its loader; a load is accepted where they are equal. Layout and order of a file do not matter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from blake3 import blake3

LARGE_BYTES = 4 << 20
"""From here on it is worth hashing one piece on several threads."""
SHARED_CORES_MIN = 3
"""From so many cores on there is room for several threads of a hash beside one who works."""


def digest_tensor(name: str, tensor: torch.Tensor, *, beside: bool = False) -> bytes:
    """32 bytes over name, dtype, shape and raw little-endian content of one tensor; ``beside`` as ``new_hasher``."""
    flat = tensor.detach().cpu().contiguous()
    head = tensor_head(name, flat)
    body = flat.reshape(-1).view(torch.uint8).numpy().data
    return new_hasher(len(body), beside=beside).update(head).update(body).digest()


def tensor_head(name: str, tensor: torch.Tensor) -> bytes:
    """What is hashed before a tensor's content."""
    return f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode()


def new_hasher(num_bytes: int, *, beside: bool = False) -> blake3:
    """For so many bytes in one piece; how many threads hash them enters no digest.

    ``beside``: another thread works meanwhile and is waited for, so that on two cores one is left to it.
    """
    alone = not beside or len(os.sched_getaffinity(0)) >= SHARED_CORES_MIN
    return blake3(max_threads=blake3.AUTO if num_bytes >= LARGE_BYTES and alone else 1)


def combine_digests(digests: Mapping[str, bytes]) -> str:
    """``blake3:<hex>`` of a whole version from the ``digest_tensor`` of each of its tensors."""
    root = blake3()
    for name in sorted(digests):
        root.update(digests[name])
    return f"blake3:{root.hexdigest()}"
