"""What the works on preferences share: shapes, what is too long, lengths, rows that share a prompt.

Axes: C scored tokens of a micro-batch, S answers, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from rollout.algorithms.preference.pairs import sum_answers
from rollout.learner.forward.packed_rows import PackedRow, TokenStats
from rollout.learner.objectives.metrics import describe_lengths
from rollout.learner.objectives.plan import GroupShape, MicroBatch
from rollout.learner.objectives.preference.data import Ids

TOO_LONG = "length"
"""Disposition of what exceeds ``maxLength``."""


class Item(Protocol):
    """A pair, or a labelled answer."""

    @property
    def prompt_ids(self) -> Ids:
        """Tokens of the prompt."""
        ...

    @property
    def longest(self) -> int:
        """Tokens of the prompt and the longest answer."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and all answers."""
        ...


def plan_shapes(items: Sequence[Item], max_length: int) -> list[GroupShape]:
    """One sample an item, so that a pair is never cut apart; what is too long has none."""
    return [
        GroupShape(
            prompt_tokens=len(item.prompt_ids),
            completion_tokens=(item.num_tokens - len(item.prompt_ids),),
        )
        if item.longest <= max_length
        else GroupShape(prompt_tokens=0, completion_tokens=())
        for item in items
    ]


def find_too_long(items: Sequence[Item], max_length: int) -> dict[int, str]:
    """Positions of what is left out, and why."""
    return {i: TOO_LONG for i, item in enumerate(items) if item.longest > max_length}


def describe_items(items: Sequence[Item], max_length: int) -> dict[str, Any]:
    """Counts and lengths; lengths are of what is learned from, prompt included."""
    kept = [item for item in items if item.longest <= max_length]
    lengths = [item.longest for item in kept]
    return {
        "num_sequences": len(kept),
        "num_tokens": sum(item.num_tokens for item in kept),
        "num_excluded": 0,
        "num_too_long": len(items) - len(kept),
        **(describe_lengths(lengths) if lengths else {}),
    }


def positions_of(micro: MicroBatch) -> list[int]:
    """Which pairs or labelled answers of the step a micro-batch holds, in its order."""
    return [chunk.group for chunk in micro.chunks]


def answer_sums(stats: TokenStats, row: PackedRow) -> Tensor:
    """Logprobs summed over each answer of a row: ``[S]``."""
    logprobs = stats.logprobs_C
    return sum_answers(logprobs, torch.ones_like(logprobs), answers_of(row), len(row.lengths))


def answers_of(row: PackedRow) -> Tensor:
    """Which answer of the row each scored token belongs to: ``[C]``."""
    device = row.targets_C.device
    lengths = torch.tensor(row.lengths, device=device)
    return torch.arange(len(row.lengths), device=device).repeat_interleave(
        lengths, output_size=int(row.targets_C.shape[0])
    )
