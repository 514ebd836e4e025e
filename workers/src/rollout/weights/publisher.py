"""Which form a new version is stored in: whole, or as what changed since the one before.

Chosen by what was measured: a delta is stored when it is small and its chain short. A version of a chain
is had from the dense base at its end and every delta after it, so late joiners start from a dense base at
most ``CHAIN_MAX`` versions old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rollout.objects.bulk import name_parts
from rollout.seams import ObjectStore
from rollout.weights.delta import Tensors, encode_delta, layout_of
from rollout.weights.device_hash.digest import device_digests
from rollout.weights.host import host_tensors
from rollout.weights.safetensors import raw_tensors, safetensors_parts
from rollout_vllm.sending.heads import safetensors_head

CHAIN_MAX = 10
"""Deltas after a dense base; what TRL's delta sync and PULSE use."""
SHARE_MAX = 0.5
"""A delta larger than this share of the dense object is not worth its chain."""
SIZE_BYTES_MIN = 1 << 20
"""Smaller models are always whole: they are written faster than compared."""
PATIENCE = 10
"""Versions stored whole without looking, after one that had changed too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The object that holds a version, and those that it builds on, the dense base last."""

    object: str
    bases: tuple[str, ...] = ()


def name_whole(weights: Mapping[str, torch.Tensor]) -> Stored:
    """Where a version would be stored whole; nothing is stored, and what lies on a device stays there."""
    message = (*safetensors_head(weights), *(weights[name] for name in sorted(weights)))
    if (found := device_digests([message])) is not None:
        return Stored(object=f"blake3:{found[0].hex()}")
    weights = host_tensors(weights)
    return Stored(object=name_parts(safetensors_parts(weights)))


def store_whole(store: ObjectStore, weights: Mapping[str, torch.Tensor]) -> Stored:
    """Store a version whole. Raises StoreError."""
    return Stored(object=store.put_parts(safetensors_parts(host_tensors(weights))))


class Publisher:
    """Stores versions in their order. Owns a copy of the last one in host memory, while it is of use."""

    def __init__(self, store: ObjectStore, *, size_bytes_min: int = SIZE_BYTES_MIN) -> None:
        self._store = store
        self._size_bytes_min = size_bytes_min
        self._held: dict[str, np.ndarray] = {}
        self._last: Stored | None = None
        self._skip = 0

    def store(self, weights: Mapping[str, torch.Tensor]) -> Stored:
        """Store the next version; durable when this returns. Raises StoreError."""
        host = {name: one.detach().contiguous() for name, one in host_tensors(weights).items()}
        whole = safetensors_parts(host)
        if _size(whole) < self._size_bytes_min:
            return Stored(object=self._store.put_parts(whole))
        new = raw_tensors(host)
        stored = self._store_delta(new, _size(whole)) or Stored(object=self._store.put_parts(whole))
        if self._skip:
            self._last = None
        else:
            self._remember(new, stored)
        return stored

    def forget(self) -> None:
        """The objects stored last cannot be built upon: the next version is whole."""
        self._last = None

    def _store_delta(self, new: Tensors, dense_bytes: int) -> Stored | None:
        """The version as a delta; None where it is to be whole."""
        last = self._last
        if self._skip:
            self._skip -= 1
            return None
        if last is None or len(last.bases) >= CHAIN_MAX or layout_of(self._held) != layout_of(new):
            return None
        bases = (last.object, *last.bases)
        parts = encode_delta(self._held, new, bases)
        if _size(parts) > SHARE_MAX * dense_bytes:
            self._skip = PATIENCE
            return None
        return Stored(object=self._store.put_parts(parts), bases=bases)

    def _remember(self, new: Tensors, stored: Stored) -> None:
        self._last = stored
        if layout_of(self._held) != layout_of(new):
            self._held = {name: np.empty_like(bits) for name, bits in new.items()}
        for name, bits in new.items():
            np.copyto(self._held[name], bits)


def _size(parts: Sequence[bytes | memoryview]) -> int:
    return sum(memoryview(part).nbytes for part in parts)
