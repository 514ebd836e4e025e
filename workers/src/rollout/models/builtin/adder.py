"""``rollout://tiny-adder``: a tiny Qwen2 that has watched a careless pupil add two-digit numbers.

The committed recipe: random weights by exact arithmetic, one token per character, then a short
supervised warm start on ``rollout.environments.sample_data.worked_sums``. It answers about a third of the held-out sums
and rarely carries: a place from which reinforcement learning is seen to learn within minutes.
``?steps=0`` is the same model before the warm start. Refuses to know more than addition.

Equal parameters give equal bytes on one kind of machine; the warm start is floating-point arithmetic of
torch on one thread, so another processor may round differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout.common.parameters import parse_parameters
from rollout.environments.sample_data.worked_sums import worked_sums
from rollout.models.builtin.local_tokenizers import PLAIN_STYLE, build_character_tokenizer
from rollout.models.builtin.pupil import (
    build_shape,
    canonical_pupil,
    check_seed,
    check_steps,
    write_pupil,
)
from rollout.models.builtin.tiny import TinyShape
from rollout.rendering.build import build_renderer
from rollout.types import Message

RECIPE_VERSION = 2
"""Raised when the same parameters would give another model: it is part of the cache's name."""

ALPHABET = "0123456789+-*= \n"
CONTEXT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Adder:
    """The parameters: ``seed`` draws weights and order, ``steps`` is the length of the warm start."""

    seed: int = 0
    steps: int = 300

    def __post_init__(self) -> None:
        check_steps(self.steps)
        check_seed(self.seed)

    @property
    def shape(self) -> TinyShape:
        """187,104 parameters; heads of 32, the smallest that vLLM's CPU build takes."""
        return build_shape(self.seed, CONTEXT)


def canonical_adder(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters with defaults filled in. Raises SpecError for a bad one."""
    return canonical_pupil(_parse(parameters), RECIPE_VERSION)


def build_adder(directory: Path, parameters: Mapping[str, str]) -> None:
    """Write the model folder; with ``steps`` above 0 takes some seconds and needs torch."""
    adder = _parse(parameters)
    write_untrained(directory, adder)
    if adder.steps:
        from rollout.models.builtin.warm_start import warm_start

        rows, pad = worked_rows(directory)
        warm_start(directory, rows, pad, seed=adder.seed, steps=adder.steps)


def worked_rows(directory: Path) -> tuple[list[tuple[list[int], list[int]]], int]:
    """The pupil's sums in the tokens of the tokenizer in ``directory``, what to learn of them, and the pad."""
    renderer = build_renderer(directory)
    rows = []
    for prompt, answer in worked_sums():
        messages = (Message(role="user", content=prompt), Message(role="assistant", content=answer))
        ids, mask = renderer.render_training(messages)
        rows.append((list(ids), list(mask)))
    return rows, renderer.pad_token_id


def _parse(parameters: Mapping[str, str]) -> Adder:
    return parse_parameters("rollout://tiny-adder", Adder, parameters)


def write_untrained(directory: Path, adder: Adder) -> None:
    """Write configuration, tokenizer and random weights."""
    tokenizer = build_character_tokenizer(ALPHABET, PLAIN_STYLE)
    write_pupil(directory, adder.shape, tokenizer, PLAIN_STYLE)
