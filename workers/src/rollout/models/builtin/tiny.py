"""Tiny models made on the spot: ``rollout://tiny-qwen2`` and ``rollout://tiny-llama``.

A configuration and a seed give the same bytes on every machine: weights come from a counter-based
generator's raw integers by exact arithmetic, never from a library's normal distribution. Random
weights: they exercise everything and know nothing. No torch: ``plan`` and the tests stay quick.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from rollout.errors import SpecError
from rollout.models.builtin.local_tokenizers import (
    LLAMA_STYLE,
    QWEN_STYLE,
    TokenizerStyle,
    build_byte_tokenizer,
    write_tokenizer,
)
from rollout.seeds import derive_seed

RECIPE_VERSION = 1
"""Raised when the same parameters would give other bytes: it is part of the cache's name."""

INIT_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """The parameters of a tiny model; 0 in ``heads``, ``kv_heads`` or ``intermediate`` means derived.

    Derived: heads of 32 below hidden 256 and of 64 from there on, half as many key-value heads,
    intermediate three times hidden. ``hidden=512&layers=8`` is the 25 M parameter benchmark model.
    """

    hidden: int = 128
    layers: int = 2
    heads: int = 0
    kv_heads: int = 0
    intermediate: int = 0
    context: int = 4096
    seed: int = 0
    tied: int = 0


LIMITS = {
    "hidden": (8, 8192),
    "layers": (1, 128),
    "heads": (0, 256),
    "kv_heads": (0, 256),
    "intermediate": (0, 65536),
    "context": (16, 1_048_576),
    "seed": (0, 2**63 - 1),
    "tied": (0, 1),
}


def parse_shape(name: str, parameters: Mapping[str, str]) -> TinyShape:
    """The shape with all derived numbers filled in. Raises SpecError naming the parameter."""
    known = [field.name for field in fields(TinyShape)]
    values = {key: _parse_parameter(name, known, key, text) for key, text in parameters.items()}
    shape = _fill(TinyShape(**values))
    if shape.hidden % shape.heads or (shape.hidden // shape.heads) % 2:
        raise SpecError(
            f"rollout://{name}: hidden={shape.hidden} must be an even multiple of heads={shape.heads}"
        )
    if shape.heads % shape.kv_heads:
        raise SpecError(
            f"rollout://{name}: heads={shape.heads} is no multiple of kv_heads={shape.kv_heads}"
        )
    return shape


def _fill(shape: TinyShape) -> TinyShape:
    heads = shape.heads or max(2, shape.hidden // (32 if shape.hidden < 256 else 64))
    return replace(
        shape,
        heads=heads,
        kv_heads=shape.kv_heads or max(1, heads // 2),
        intermediate=shape.intermediate or 3 * shape.hidden,
    )


def _parse_parameter(name: str, known: list[str], key: str, text: str) -> int:
    if key not in known:
        raise SpecError(f"rollout://{name}: unknown parameter {key!r}; it takes {', '.join(known)}")
    low, high = LIMITS[key]
    if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
        raise SpecError(f"rollout://{name}: {key}={text!r}: expected an integer {low}..{high}")
    return int(text)


def canonical_qwen2(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters with defaults filled in: equal models have equal canonical parameters."""
    return _canonical("tiny-qwen2", parameters)


def canonical_llama(parameters: Mapping[str, str]) -> dict[str, str]:
    """As ``canonical_qwen2``, for ``tiny-llama``."""
    return _canonical("tiny-llama", parameters)


def _canonical(name: str, parameters: Mapping[str, str]) -> dict[str, str]:
    shape = asdict(parse_shape(name, parameters))
    return {key: str(value) for key, value in shape.items()} | {"recipe": str(RECIPE_VERSION)}


def build_qwen2(directory: Path, parameters: Mapping[str, str]) -> None:
    """Write a Qwen2 model folder. Raises SpecError for a bad parameter."""
    _build(directory, parse_shape("tiny-qwen2", parameters), "qwen2", QWEN_STYLE)


def build_llama(directory: Path, parameters: Mapping[str, str]) -> None:
    """Write a Llama model folder. Raises SpecError for a bad parameter."""
    _build(directory, parse_shape("tiny-llama", parameters), "llama", LLAMA_STYLE)


def _build(directory: Path, shape: TinyShape, family: str, style: TokenizerStyle) -> None:
    tokenizer = build_byte_tokenizer(style)
    write_tokenizer(directory, tokenizer, style, shape.context)
    write_config(
        directory,
        shape,
        family,
        vocab_size=tokenizer.get_vocab_size(),
        token_ids={
            "bos_token_id": tokenizer.token_to_id(style.bos) if style.bos else None,
            "eos_token_id": tokenizer.token_to_id(style.eos),
            "pad_token_id": tokenizer.token_to_id(style.pad),
        },
    )
    tensors = build_tensors(shape, family, tokenizer.get_vocab_size())
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)


def write_config(
    directory: Path,
    shape: TinyShape,
    family: str,
    *,
    vocab_size: int,
    token_ids: Mapping[str, int | None],
) -> None:
    """Write ``config.json`` in the names of transformers 5; ``family`` is ``qwen2`` or ``llama``."""
    config = {
        "architectures": ["Qwen2ForCausalLM" if family == "qwen2" else "LlamaForCausalLM"],
        "model_type": family,
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": bool(shape.tied),
        "attention_dropout": 0.0,
        "use_cache": True,
        "initializer_range": INIT_STD,
        "dtype": "float32",
        **token_ids,
        **_family_config(family),
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _family_config(family: str) -> dict[str, bool]:
    if family == "qwen2":
        return {"use_sliding_window": False}
    return {"attention_bias": False, "mlp_bias": False}


def build_tensors(shape: TinyShape, family: str, vocab_size: int) -> dict[str, np.ndarray]:
    """All float32 parameters by their transformers names."""
    return draw_tensors(parameter_shapes(shape, family, vocab_size), shape.seed)


def draw_tensors(shapes: Iterable[tuple[str, tuple[int, ...]]], seed: int) -> dict[str, np.ndarray]:
    """Parameters by name, float32; each drawn from a seed of its own name."""
    tensors = {}
    for name, dims in shapes:
        if name.endswith("norm.weight"):
            tensors[name] = np.ones(dims, np.float32)
        elif name.endswith(".bias"):
            tensors[name] = np.zeros(dims, np.float32)
        else:
            tensors[name] = _draw(derive_seed(seed, f"init/{name}", 0), dims)
    return tensors


def write_scaled(directory: Path, shape: TinyShape, vocab_size: int, scale: int) -> None:
    """Write a Qwen2's random weights, ``scale`` (a power of two: exact) times as large; norms stay at one."""
    tensors = {
        name: tensor if name.endswith("norm.weight") else tensor * np.float32(scale)
        for name, tensor in build_tensors(shape, "qwen2", vocab_size).items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def parameter_shapes(
    shape: TinyShape, family: str, vocab_size: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and dimensions of every parameter."""
    hidden, wide = shape.hidden, shape.intermediate
    kv = hidden // shape.heads * shape.kv_heads
    yield "model.embed_tokens.weight", (vocab_size, hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        for part, rows in (("q", hidden), ("k", kv), ("v", kv)):
            yield f"{prefix}.self_attn.{part}_proj.weight", (rows, hidden)
            if family == "qwen2":
                yield f"{prefix}.self_attn.{part}_proj.bias", (rows,)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, hidden)
        yield f"{prefix}.mlp.gate_proj.weight", (wide, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (wide, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, wide)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not shape.tied:
        yield "lm_head.weight", (vocab_size, hidden)


def _draw(seed: int, dims: tuple[int, ...]) -> np.ndarray:
    """Mean 0, deviation INIT_STD: a centred sum of four 16-bit integers, scaled once (bell-shaped)."""
    size = int(np.prod(dims))
    raw = np.random.Philox(key=seed).random_raw(size).astype("<u8", copy=False)
    total = raw.view("<u2").reshape(size, 4).sum(axis=1, dtype=np.int64)
    unit = (2 * total - 4 * 65535) / np.float64(2 * 37837.22)  # sqrt(4 * (65536**2 - 1) / 12)
    return (unit * INIT_STD).astype(np.float32).reshape(dims)
