"""Adapters as versions: who publishes them, and how one becomes a dense model. Never loads torch.

A run whose actors are vLLM servers publishes what it trains, the adapter, and the servers put it beside the
model's own weights. It is merged once only, at export, in float32.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
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
    """Whether this run's versions are adapters: one is trained, over a base as it is, for vLLM servers.

    A base in four bits is restored for the learner alone, and the embedded engine has dense weights only:
    there the merged model is published.
    """
    lora, engine = config.spec.model.lora, config.spec.actors.engine
    served = engine is not None and engine.vllm is not None and config.spec.needs_actors
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
        shapes = {**read_shapes(base), **read_shapes(adapter)}
        for name in [key.removesuffix(A) for key in factors if key.endswith(A)]:
            weight = f"{name.removeprefix(PREFIX)}.weight"
            if weight not in whole:
                raise StoreError(f"adapter {adapter} changes {weight}, which {base} has not")
            a, b = (
                factors[name + part].view(np.float32).reshape(shapes[name + part])
                for part in (A, B)
            )
            summed = _floats(whole[weight]) + np.float32(scale) * (b @ a).reshape(-1)
            dense[weight][:] = _bits(summed, whole[weight])


def read_shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    """The shape of every tensor of a safetensors file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {name: tuple(one["shape"]) for name, one in header.items() if name != "__metadata__"}


def _floats(bits: Bits) -> np.ndarray:
    if bits.itemsize == np.dtype(np.float32).itemsize:
        return bits.view(np.float32)
    return (bits.astype(np.uint32) << _BF16_SHIFT).view(np.float32)


def _bits(values: np.ndarray, like: Bits) -> Bits:
    """Raw float32, or the nearest bfloat16, ties to even."""
    raw = values.astype(np.float32).view(np.uint32)
    if like.itemsize == raw.itemsize:
        return raw
    return ((raw + 0x7FFF + ((raw >> _BF16_SHIFT) & 1)) >> _BF16_SHIFT).astype(like.dtype)
