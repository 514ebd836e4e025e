"""The tensors of an export, one at a time: as they were stored, cast, renamed for PEFT, or summed with their base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from rollout.errors import StoreError
from rollout.weights.changes import Bits
from rollout.weights.lora import PREFIX, A, B, serves_adapter
from rollout.weights.numbers import TensorInfo, read_tensors, to_bits, to_floats
from rollout.weights.raw import open_raw
from rollout.weights.shards import Outgoing, combine_raw, digest_raw, num_bytes, write_shards
from rollout_api.worker import WorkerConfig

MERGED = "merged"
MASTER = ".default."
"""PEFT's name for the one adapter of a model, which its files leave out."""


class OpenWeights:
    """The tensors of safetensors files while they are mapped; remembers the digest of each one it gave."""

    def __init__(self, infos: Mapping[str, TensorInfo], raw: Mapping[str, Bits]) -> None:
        self.infos = infos
        self._raw = raw
        self._digests: dict[str, bytes] = {}

    def read(self, name: str) -> Bits:
        """Raw elements of a tensor, to be used while the files are mapped."""
        bits = self._raw[name]
        self._digests[name] = digest_raw(self.infos[name], bits)
        return bits

    def numbers(self, name: str) -> np.ndarray:
        """The tensor as float32, in its shape."""
        info = self.infos[name]
        return to_floats(self.read(name), info).reshape(info.shape)

    def require(self, digest: str, what: str) -> None:
        """Raise StoreError unless what was read, all of it, has the digest."""
        found = combine_raw(self._digests)
        if found != digest:
            raise StoreError(
                f"{what}: expected tensors of digest {digest}, read {found}; the store or a delta in it is"
                " damaged: name another step, or resume the run, which stores its weights again"
            )


@contextmanager
def open_weights(paths: Iterable[Path]) -> Iterator[OpenWeights]:
    """All tensors of some files. Raises StoreError."""
    with ExitStack() as stack:
        infos: dict[str, TensorInfo] = {}
        raw: dict[str, Bits] = {}
        for path in paths:
            infos |= read_tensors(path)
            raw |= stack.enter_context(open_raw(path))
        yield OpenWeights(infos, raw)


def as_stored(weights: OpenWeights, dtype: str) -> list[Outgoing]:
    """Every tensor under its own name, in the number format ``dtype`` (``F32``)."""
    return [
        Outgoing(info=replace(info, dtype=dtype), read=partial(_read_as, weights, name, dtype))
        for name, info in sorted(weights.infos.items())
    ]


def for_peft(weights: OpenWeights, dtype: str) -> list[Outgoing]:
    """The adapter's tensors under the names that PEFT's files have; masters are renamed."""
    return [
        Outgoing(
            info=replace(info, name=_peft_name(name), dtype=dtype),
            read=partial(_read_as, weights, name, dtype),
        )
        for name, info in sorted(weights.infos.items())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """``trained`` is the number format that the base was trained in, None its own; ``scale`` the adapter's alpha / rank."""

    base: OpenWeights
    adapter: OpenWeights
    scale: float
    trained: str | None


def merged(merging: Merging, dtype: str | None) -> list[Outgoing]:
    """Base plus adapter, summed in float32, in ``dtype`` or that of each tensor of the base. Raises StoreError for an adapter of another model."""
    changed = {
        f"{name.removesuffix(A).removeprefix(PREFIX)}.weight": name.removesuffix(A)
        for name in merging.adapter.infos
        if name.endswith(A)
    }
    if lost := sorted(set(changed) - set(merging.base.infos)):
        raise StoreError(
            f"the adapter changes {lost[0]}, which the base has not: it is of another model"
        )
    return [
        Outgoing(
            info=replace(info, dtype=dtype or info.dtype),
            read=partial(_read_merged, merging, name, changed.get(name), dtype or info.dtype),
        )
        for name, info in sorted(merging.base.infos.items())
    ]


def dense_weights(config: WorkerConfig, weights: Path, scratch: Path) -> Path:
    """The dense model of a version: its own file, or base and adapter merged into a new one. Raises StoreError."""
    lora = config.spec.model.lora
    if lora is None or not serves_adapter(config):
        return weights
    bases = sorted(Path(config.resolved.model_path).glob("*.safetensors"))
    return merge_adapter(bases, weights, lora.alpha / lora.rank, scratch)


def merge_adapter(bases: Sequence[Path], adapter: Path, scale: float, folder: Path) -> Path:
    """Write ``merged.safetensors``: the tensors of ``bases`` plus ``scale * B A``, each in its own number format.

    One tensor is in memory at a time. Raises StoreError for an adapter of another model.
    """
    if not bases:
        raise StoreError(f"adapter {adapter}: the model that it is merged into has no weights")
    with open_weights(bases) as base, open_weights([adapter]) as factors:
        merging = Merging(base=base, adapter=factors, scale=scale, trained=None)
        tensors = merged(merging, None)
        size = sum(num_bytes(one.info) for one in tensors)
        try:
            write_shards(folder, tensors, stem=MERGED, size_max=size)
        except OSError as error:
            raise StoreError(f"the merged model cannot be written to {folder}: {error}") from error
    return folder / f"{MERGED}.safetensors"


def _peft_name(name: str) -> str:
    return name if name.startswith(PREFIX) else f"{PREFIX}{name.replace(MASTER, '.')}"


def _read_as(weights: OpenWeights, name: str, dtype: str) -> Bits:
    info, bits = weights.infos[name], weights.read(name)
    return (
        bits if info.dtype == dtype else to_bits(to_floats(bits, info), replace(info, dtype=dtype))
    )


def _read_merged(merging: Merging, name: str, factors: str | None, dtype: str) -> Bits:
    info = merging.base.infos[name]
    own = merging.trained or info.dtype
    trained = replace(info, dtype=own)
    bits = _read_as(merging.base, name, own)
    if factors is not None:
        a, b = (merging.adapter.numbers(factors + part) for part in (A, B))
        bits = to_bits(
            to_floats(bits, trained) + np.float32(merging.scale) * (b @ a).reshape(-1), trained
        )
    return bits if own == dtype else to_bits(to_floats(bits, trained), replace(info, dtype=dtype))
