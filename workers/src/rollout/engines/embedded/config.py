"""What the compact decoder must know of a model, read from its ``config.json``.

Without transformers: importing its configuration classes takes an actor longer than all else it does
before its first token. Models or settings that are not known here go through transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rollout.engines.batching import is_compact, rope_of, rope_type
from rollout.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes and constants of a Llama-like decoder.

    ``inverse_frequencies`` are the rotary ones, float32 [head_size / 2], in radians per position.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    vocab_size: int
    positions_max: int
    epsilon: float
    tied: bool
    inverse_frequencies: torch.Tensor


def read_config(directory: Path) -> DecoderConfig | None:
    """The model's configuration, or None where transformers must compute it. Raises EngineError."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text())
        return _parse(config) if is_compact(config) else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"expected a decoder's config.json at {path}; got {error!r}") from error


def _parse(config: Mapping[str, Any]) -> DecoderConfig:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_size = config.get("head_dim") or hidden // heads
    return DecoderConfig(
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_size=head_size,
        hidden_size=hidden,
        vocab_size=config["vocab_size"],
        positions_max=config["max_position_embeddings"],
        epsilon=config.get("rms_norm_eps", 1e-6),
        tied=bool(config.get("tie_word_embeddings")),
        inverse_frequencies=_inverse_frequencies(rope_of(config), head_size),
    )


def _inverse_frequencies(rope: Mapping[str, Any], head_size: int) -> torch.Tensor:
    """As transformers computes them, rounding included: at position 10,000 a last bit is 0.001 rad."""
    exponents = torch.arange(0, head_size, 2).float() / head_size
    plain = 1.0 / (rope["rope_theta"] ** exponents)
    if rope_type(rope) == "linear":
        return plain / rope["factor"]
    return _stretched(plain, rope) if rope_type(rope) == "llama3" else plain


def _stretched(plain: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3.1's rule: long waves are stretched, short ones kept, those between blended."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context, factor = rope["original_max_position_embeddings"], rope["factor"]
    waves = 2 * math.pi / plain
    blend = (context / waves - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    long = torch.where(waves > context / low, plain / factor, plain)
    return torch.where((waves >= context / high) & (waves <= context / low), blended, long)
