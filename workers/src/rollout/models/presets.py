"""Sizes of the common Qwen and Llama models, known without a network.

Used by plans and memory estimates; the numbers are those of the published ``config.json`` files. The
model that runs is always the one its URI names: nothing here changes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from rollout.models.shapes import ModelShape
from rollout.models.uri import parse_model_uri


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """A published model: ``uri`` is where ``hf://`` finds it, ``gated`` whether it asks for a token."""

    name: str
    uri: str
    shape: ModelShape
    gated: bool = False


def _qwen25(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int) -> ModelShape:
    small = hidden <= 2048
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=151936 if small else 152064,
        context=32768,
        tied=small,
        qkv_bias=True,
        template_family="chatml",
    )


def _qwen3(hidden: int, layers: int, heads: int, intermediate: int) -> ModelShape:
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        intermediate=intermediate,
        vocab=151936,
        context=40960,
        tied=hidden <= 2560,
        qk_norm=True,
        template_family="chatml",
    )


def _llama3(hidden: int, layers: int, heads: int, intermediate: int) -> ModelShape:
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=128256,
        context=131072,
        tied=hidden <= 3072,
        template_family="llama3",
    )


_QWEN25 = {
    "0.5B": _qwen25(896, 24, 14, 2, 4864),
    "1.5B": _qwen25(1536, 28, 12, 2, 8960),
    "3B": _qwen25(2048, 36, 16, 2, 11008),
    "7B": _qwen25(3584, 28, 28, 4, 18944),
    "14B": _qwen25(5120, 48, 40, 8, 13824),
    "32B": _qwen25(5120, 64, 40, 8, 27648),
    "72B": _qwen25(8192, 80, 64, 8, 29568),
}
_QWEN3 = {
    "0.6B": _qwen3(1024, 28, 16, 3072),
    "1.7B": _qwen3(2048, 28, 16, 6144),
    "4B": _qwen3(2560, 36, 32, 9728),
    "8B": _qwen3(4096, 36, 32, 12288),
    "14B": _qwen3(5120, 40, 40, 17408),
    "32B": _qwen3(5120, 64, 64, 25600),
}
_LLAMA3 = {
    "3.2-1B": _llama3(2048, 16, 32, 8192),
    "3.2-3B": _llama3(3072, 28, 24, 8192),
    "3.1-8B": _llama3(4096, 32, 32, 14336),
    "3.1-70B": _llama3(8192, 80, 64, 28672),
}


def _presets() -> Iterator[ModelPreset]:
    for size, shape in _QWEN25.items():
        yield _preset(f"Qwen/Qwen2.5-{size}", shape)
        yield _preset(f"Qwen/Qwen2.5-{size}-Instruct", shape)
    for size, shape in _QWEN3.items():
        yield _preset(f"Qwen/Qwen3-{size}", shape)
        if size != "32B":  # published without a base model
            yield _preset(f"Qwen/Qwen3-{size}-Base", shape)
    for size, shape in _LLAMA3.items():
        yield _preset(f"meta-llama/Llama-{size}", shape, gated=True)
        yield _preset(f"meta-llama/Llama-{size}-Instruct", shape, gated=True)


def _preset(repo: str, shape: ModelShape, *, gated: bool = False) -> ModelPreset:
    name = repo.split("/", 1)[1].lower()
    return ModelPreset(name=name, uri=f"hf://{repo}", shape=shape, gated=gated)


PRESETS = MappingProxyType({preset.name: preset for preset in _presets()})
"""By lower-case name: ``qwen2.5-0.5b-instruct``, ``llama-3.2-1b``."""

_BY_URI = {preset.uri.lower(): preset for preset in PRESETS.values()}


def find_preset(uri: str) -> ModelPreset | None:
    """The preset of an ``hf://`` model (its name's case does not matter), or None."""
    return _BY_URI.get(str(parse_model_uri(uri)).lower())
