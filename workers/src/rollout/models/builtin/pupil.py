"""What the tiny models that have watched a pupil share: bounds of their parameters, their shape, the folder before the warm start."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout.models.builtin.local_tokenizers import TokenizerStyle, write_tokenizer
from rollout.models.builtin.tiny import TinyShape, write_config, write_scaled

if TYPE_CHECKING:
    from tokenizers import Tokenizer

INIT_SCALE = 4
"""Times the tiny models' 0.02: at hidden 96, with 0.02, sums are learned many times slower."""


def check_steps(steps: int) -> None:
    """Raises ValueError for a warm start that is too long."""
    if not 0 <= steps <= 10_000:
        raise ValueError(f"steps: expected 0..10000, got {steps}")


def check_seed(seed: int) -> None:
    """Raises ValueError."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected 0..2^63-1, got {seed}")


def build_shape(seed: int, context: int) -> TinyShape:
    """Under 200,000 parameters; heads of 32, the smallest that vLLM's CPU build takes."""
    return TinyShape(
        hidden=96,
        layers=2,
        heads=3,
        kv_heads=3,
        intermediate=192,
        context=context,
        seed=seed,
        tied=1,
    )


def canonical_pupil(parameters: Any, recipe_version: int) -> dict[str, str]:
    """The parameters, a dataclass, as text, with the recipe's version."""
    filled = {name: str(value) for name, value in asdict(parameters).items()}
    return filled | {"recipe": str(recipe_version)}


def write_pupil(
    directory: Path, shape: TinyShape, tokenizer: Tokenizer, style: TokenizerStyle
) -> None:
    """Write configuration, tokenizer and random weights."""
    write_tokenizer(directory, tokenizer, style, shape.context)
    size = tokenizer.get_vocab_size()
    ids = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(style.eos),
        "pad_token_id": tokenizer.token_to_id(style.pad),
    }
    write_config(directory, shape, "qwen2", vocab_size=size, token_ids=ids)
    write_scaled(directory, shape, size, INIT_SCALE)
