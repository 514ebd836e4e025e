"""Which groups the embedded engine decodes together, and in how many rows: arithmetic, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL_TYPES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3")
BATCH_SAMPLES = 256
"""Samples the embedded engine decodes together, when the manifest does not say."""
ROWS = 16
"""Batches of a fixed shape have a multiple of so many rows."""
NEW_TOKENS_MAX = 4096
"""Longer completions have no fixed shape: their groups run alone."""


def is_compact(config: Mapping[str, Any]) -> bool:
    """Whether the engine's own decoder computes a model of this ``config.json``, which shares batches; else transformers does."""
    slides = config.get("use_sliding_window") or "sliding_attention" in (
        config.get("layer_types") or ()
    )
    rope = rope_of(config)
    return (
        config.get("model_type") in MODEL_TYPES
        and not slides
        and rope_type(rope) in ROPE_TYPES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("mlp_bias")
    )


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary settings in the present form, from either form of the file."""
    old = {"rope_theta": config.get("rope_theta", 10000.0)} | (config.get("rope_scaling") or {})
    return config.get("rope_parameters") or old


def rope_type(rope: Mapping[str, Any]) -> str:
    """The name of what is done with rotary frequencies."""
    return rope.get("rope_type") or rope.get("type") or "default"


def plan_batch_groups(samples: int, prompts: int) -> int:
    """Groups to decode together: a step's, or as many as give BATCH_SAMPLES.

    The number of actors does not enter, so that it can change no token.
    """
    wanted = max(1, BATCH_SAMPLES // samples)
    return min(wanted, prompts) if prompts else wanted


def candidate_widths(group_size: int, groups_max: int) -> tuple[int, ...]:
    """Numbers of rows worth having for 1 to ``groups_max`` groups: near what is needed, few to probe."""
    full = -(-group_size * groups_max // ROWS) * ROWS
    sizes = {ROWS << power for power in range(full.bit_length())}
    sizes |= {3 * size // 2 for size in sizes if size > ROWS}
    return (*sorted(size for size in sizes if group_size <= size < full), full)


def fixed_rows(samples: int, widths: tuple[int, ...]) -> int:
    """Rows of the products for so many samples: the fewest of ``widths`` that hold them."""
    return next((width for width in widths if width >= samples), samples)
