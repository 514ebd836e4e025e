"""A version laid out as a safetensors file in memory, tensor by tensor as they come, each hashed where it lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rollout_vllm.digest import combine_digests, new_hasher, tensor_head
from rollout_vllm.sending.heads import safetensors_head
from rollout_vllm.sending.memory import SealedMemory

SHARE_MAX = 0.5
"""Of the memory that is free when a version is first laid out."""
MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Declared:
    """What a tensor will be when it comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """A version in the file at ``path``. ``tensors``: the digest of each, by name."""

    path: Path
    tensors: dict[str, bytes]

    @property
    def digest(self) -> str:
        """Of the version."""
        return combine_digests(self.tensors)


class VersionMemory:
    """Owns one file for versions of one layout; whoever reads it has ended before the next ``lay_out``."""

    def __init__(self) -> None:
        self._declared: tuple[Declared, ...] = ()
        self._held: SealedMemory | None = None
        self._places: dict[str, torch.Tensor] = {}

    def lay_out(
        self, declared: Sequence[Declared], tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> LaidOut:
        """Copy every tensor to its place. Raises ValueError where they are not what was declared, OSError without memory."""
        if self._held is None or self._declared != tuple(declared):
            self.close()
            self._held, self._places = _make(declared)
            self._declared = tuple(declared)
        found: dict[str, bytes] = {}
        left = iter(declared)
        for name, tensor in tensors:
            _require(next(left, None), name, tensor)
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            place = self._places[name].copy_(flat).numpy().data
            head = tensor_head(name, tensor)
            found[name] = new_hasher(len(place)).update(head).update(place).digest()
        if len(found) != len(declared):
            raise ValueError(f"{len(found)} tensors came of the {len(declared)} that were declared")
        return LaidOut(path=self._held.path, tensors=found)

    def close(self) -> None:
        """Give the memory back; idempotent."""
        held, self._held, self._places, self._declared = self._held, None, {}, ()
        if held is not None:
            held.close()


def _make(declared: Sequence[Declared]) -> tuple[SealedMemory, dict[str, torch.Tensor]]:
    """A file with its head, sealed, and the bytes of each tensor in it."""
    named = {one.name: torch.empty(one.shape, dtype=one.dtype, device="meta") for one in declared}
    if not named or len(named) != len(declared):
        raise ValueError(f"{len(declared)} tensors have {len(named)} names: each needs its own")
    head = b"".join(safetensors_head(named))
    size = len(head) + sum(one.nbytes for one in named.values())
    _require_room(size)
    held = SealedMemory(size)
    held.mapped[: len(head)] = head
    held.seal()
    whole, places, start = torch.frombuffer(held.mapped, dtype=torch.uint8), {}, len(head)
    for name in sorted(named):
        places[name] = whole[start : start + named[name].nbytes]
        start += named[name].nbytes
    return held, places


def _require(declared: Declared | None, name: str, tensor: torch.Tensor) -> None:
    found = Declared(name, tensor.dtype, tuple(tensor.shape))
    if found != declared:
        raise ValueError(f"declared {declared}, got {found}: metadata and tensors disagree")


def _require_room(size: int) -> None:
    lines = MEMORY.read_text().splitlines()
    free = next((int(one.split()[1]) << 10 for one in lines if one.startswith("MemAvailable:")), 0)
    if size > SHARE_MAX * free:
        raise OSError(
            f"{size} bytes of weights are more than {SHARE_MAX:g} of the {free} bytes of memory that are free"
        )
