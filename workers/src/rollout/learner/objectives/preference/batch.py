"""What the works on preferences share: shapes, what is too long, rows that share a prompt, answers scored.

Axes: C scored tokens of a micro-batch, S answers, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rollout.algorithms.preference.pairs import sum_answers
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    PackedRow,
    TokenStats,
    build_group_row,
    token_logprobs,
)
from rollout.learner.objectives.contract import TokenView
from rollout.learner.objectives.metrics import describe_lengths
from rollout.learner.objectives.plan import GroupShape, MicroBatch

TOO_LONG = "length"
"""Disposition of what exceeds ``maxLength``."""


class Item(Protocol):
    """A pair, or a labelled answer."""

    @property
    def tokens(self) -> GroupTokens:
        """The prompt and its answers."""
        ...


class PreferenceBatch:
    """The items of one step; what exceeds ``max_length`` is left out, by position."""

    def __init__(self, items: Sequence[Item], max_length: int, device: torch.device) -> None:
        self.groups = [item.tokens for item in items]
        self.device = device
        self.left_out = {
            i: TOO_LONG for i, group in enumerate(self.groups) if _longest(group) > max_length
        }

    def shapes(self) -> list[GroupShape]:
        """One sample an item, so that a pair is never cut apart; what is too long has none."""
        return [
            GroupShape(prompt_tokens=0, completion_tokens=())
            if i in self.left_out
            else GroupShape(
                prompt_tokens=len(group.prompt_ids), completion_tokens=(_num_answer_tokens(group),)
            )
            for i, group in enumerate(self.groups)
        ]

    def describe(self) -> dict[str, Any]:
        """Counts and lengths; lengths are of what is learned from, prompt included."""
        kept = [group for i, group in enumerate(self.groups) if i not in self.left_out]
        lengths = [_longest(group) for group in kept]
        return {
            "num_sequences": len(kept),
            "num_tokens": sum(len(one.prompt_ids) + _num_answer_tokens(one) for one in kept),
            "num_excluded": 0,
            "num_too_long": len(self.left_out),
            **(describe_lengths(lengths) if lengths else {}),
        }

    def row(self, positions: Sequence[int]) -> PackedRow:
        """Some items as one row, answers that share their prompt beside each other."""
        return build_group_row([self.groups[i] for i in positions]).to(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswers:
    """A row under the policy: ``sums_S`` carries a gradient, the rest is detached, for metrics."""

    sums_S: Tensor
    sums: dict[str, Tensor]
    tokens: TokenView


def score_answers(model: nn.Module, row: PackedRow, per_item: int = 1) -> ScoredAnswers:
    """Logprobs summed over each answer of a row of items with ``per_item`` answers."""
    stats = token_logprobs(model, row, entropy=True)
    assert stats.entropy_C is not None
    logprobs_C, entropy_C = stats.logprobs_C.detach(), stats.entropy_C.detach()
    items = range(0, len(row.lengths), per_item)
    return ScoredAnswers(
        sums_S=answer_sums(stats, row),
        sums={
            "tokens": logprobs_C.new_tensor(logprobs_C.shape[0]),
            "entropy": entropy_C.sum(),
        },
        tokens=TokenView(
            lengths=tuple(sum(row.lengths[i : i + per_item]) for i in items),
            logprobs_C=logprobs_C,
            entropy_C=entropy_C,
            mask_C=torch.ones_like(logprobs_C),
        ),
    )


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


def _longest(group: GroupTokens) -> int:
    """Tokens of the prompt and its longest answer."""
    return len(group.prompt_ids) + max(map(len, group.completion_ids))


def _num_answer_tokens(group: GroupTokens) -> int:
    return sum(map(len, group.completion_ids))
