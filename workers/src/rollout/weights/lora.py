"""Adapters as versions: who publishes them, and how one becomes a dense model. Never loads torch.

A run whose actors are vLLM servers publishes what it trains, the adapter, and the servers put it beside the
model's own weights. It is merged once only, at export, in float32.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout.errors import StoreError
from rollout.weights.changes import Bits
from rollout.weights.raw import open_raw
from rollout_api.worker import WorkerConfig

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
_BF16_SHIFT = 16


def serves_adapter(config: WorkerConfig) -> bool:
    """Whether this run's versions are adapters: one is trained, over a base as it is, for engines that serve them.

    A base in four bits is restored for the learner alone, and an engine may have dense weights only:
    there the merged model is published.
    """
    lora, spec = config.spec.model.lora, config.spec
    served = spec.actors.chosen_engine.capabilities.adapters and spec.needs_actors
    return served and lora is not None and lora.quantization is None


def dense_weights(config: WorkerConfig, weights: Path, scratch: Path) -> Path:
    """The dense model of a version: its own file, or base and adapter merged into a new one. Raises StoreError."""
    lora = config.spec.model.lora
    if lora is None or not serves_adapter(config):
        return weights
    target = scratch / "merged.safetensors"
    base = Path(config.resolved.model_path) / "model.safetensors"
    merge_adapter(base, weights, lora.alpha / lora.rank, target)
    return target


def merge_adapter(base: Path, adapter: Path, scale: float, target: Path) -> None:
    """Write ``base`` plus ``scale * B A``, summed in float32, in the number format of ``base``.

    All three are safetensors files. Raises StoreError for an adapter of another model.
    """
    if not base.exists():
        raise StoreError(
            f"an adapter is merged into one file of weights, and {base} is not there (a model in "
            "several files?): load the run's folder adapter/ with PEFT instead"
        )
    shutil.copyfile(base, target)
    with (
        open_raw(target, writable=True) as dense,
        open_raw(base) as whole,
        open_raw(adapter) as factors,
    ):
        tensors = {**read_tensors(base), **read_tensors(adapter)}
        for name in [key.removesuffix(A) for key in factors if key.endswith(A)]:
            weight = f"{name.removeprefix(PREFIX)}.weight"
            if weight not in whole:
                raise StoreError(f"adapter {adapter} changes {weight}, which {base} has not")
            a, b = (
                _floats(factors[key], tensors[key]).reshape(tensors[key].shape)
                for key in (name + A, name + B)
            )
            dense_of = tensors[weight]
            summed = _floats(whole[weight], dense_of) + np.float32(scale) * (b @ a).reshape(-1)
            dense[weight][:] = _bits(summed, dense_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """What a safetensors header says of one tensor: the format's name of its numbers (``F16``), its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def read_tensors(path: Path) -> Mapping[str, TensorInfo]:
    """Every tensor of a safetensors file, by name."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {
        name: TensorInfo(name=name, dtype=one["dtype"], shape=tuple(one["shape"]))
        for name, one in header.items()
        if name != "__metadata__"
    }


def _floats(bits: Bits, of: TensorInfo) -> np.ndarray:
    """The numbers as float32. Raises StoreError for numbers that no adapter can be added to."""
    if of.dtype == "F32":
        return bits.view(np.float32)
    if of.dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    if of.dtype == "BF16":
        return (bits.astype(np.uint32) << _BF16_SHIFT).view(np.float32)
    raise StoreError(
        f"{of.name} holds {of.dtype}; an adapter is merged into F32, F16 or BF16 numbers: load the run's "
        "folder adapter/ with PEFT instead"
    )


def _bits(values: np.ndarray, like: TensorInfo) -> Bits:
    """Raw numbers in the format of ``like``, the nearest ones, ties to even."""
    if like.dtype == "F16":
        return values.astype(np.float16).view(np.uint16)
    raw = values.astype(np.float32).view(np.uint32)
    if like.dtype == "F32":
        return raw
    return ((raw + 0x7FFF + ((raw >> _BF16_SHIFT) & 1)) >> _BF16_SHIFT).astype(np.uint16)
