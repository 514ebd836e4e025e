"""The digest of a weight version, and weights as files. What is hashed: ``rollout_vllm.digest``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors.torch import save_file

from rollout.weights.device_hash.digest import device_digests
from rollout.weights.host import host_tensors, read_apart
from rollout_vllm.digest import combine_digests, digest_tensor, tensor_head

THREADS_MAX = 4
"""Of one digest: memory is read no faster by more."""
APART_BYTES_MIN = 1 << 18
"""Smaller tensors are hashed where they are met: telling a thread costs more."""


class TensorDigests:
    """Hashes tensors on the host in threads, while whoever gives them goes on. Use as a context.

    What was given must stay as it is until ``combined``.
    """

    def __init__(self) -> None:
        threads = min(THREADS_MAX, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rollout-digest")
        self._found: dict[str, bytes] = {}
        self._coming: dict[str, Future[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Hash one more."""
        if tensor.nbytes < APART_BYTES_MIN:
            self._found[name] = digest_tensor(name, tensor)
        else:
            self._coming[name] = self._pool.submit(digest_tensor, name, tensor)

    def combined(self) -> str:
        """The digest of a version that has these tensors; waits for the last of them."""
        waited = {name: one.result() for name, one in self._coming.items()}
        return combine_digests(self._found | waited)


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """``blake3:<hex>`` over all tensors, by sorted name; those on a device are hashed there, where it can."""
    found = device_digests([(tensor_head(name, one), one) for name, one in tensors.items()])
    if found is not None:
        return combine_digests(dict(zip(tensors, found, strict=True)))
    with TensorDigests() as digests:
        for name, one in host_tensors(tensors).items():
            digests.add(name, one)
        return digests.combined()


def save_weights(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file readable by another user, names sorted so that equal content is equal bytes."""
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    save_file(ordered, path, metadata={"format": "pt"})
    path.chmod(0o644)


def weight_files(place: Path) -> list[Path]:
    """The safetensors files of a model's folder, by name; a file is its own. Raises FileNotFoundError for a folder without any."""
    if not place.is_dir():
        return [place]
    found = sorted(place.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError(f"{place} has no *.safetensors weights")
    return found


def load_weights(
    path: Path, met: Callable[[str, torch.Tensor], None] | None = None
) -> dict[str, torch.Tensor]:
    """Read a safetensors file, or all of a folder, into CPU tensors in memory of their own; ``met`` hears of each.

    A file that is mapped would go on changing under what was made of it: a mirror is patched in place,
    and what was verified must stay what it was. Raises OSError, and ValueError on what is no whole file.
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(path):
        for name, tensor in read_apart(file):
            tensors[name] = tensor
            if met is not None:
                met(name, tensor)
    return tensors
