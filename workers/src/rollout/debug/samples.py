"""A batch's samples in the order of consumption, with what is known of them before any forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout.debug.observe import Place
from rollout.learner.config.sft import SftSettings
from rollout.learner.context import LearnerContext
from rollout.learner.objectives.completions import rows_in
from rollout.learner.objectives.contract import Work
from rollout.learner.objectives.distill import DistillWork
from rollout.learner.objectives.policy import PolicyWork
from rollout.learner.objectives.ppo import PpoWork
from rollout.learner.objectives.sft import render_rows
from rollout.protocol.messages import Batch
from rollout.types import Row

Line = dict[str, Any]


def describe_samples(parts: LearnerContext, batch: Batch, work: Work) -> list[tuple[Place, Line]]:
    """Where each sample is in the batch, and its line; rows have no reward and no advantage."""
    algorithm = parts.trainer.settings.algorithm
    if isinstance(algorithm, SftSettings):
        return list(_rows(parts, batch, algorithm))
    if batch.rows:
        return list(_preferences(batch, work))
    assert isinstance(work, PolicyWork | PpoWork | DistillWork)
    return list(_groups(batch, work))


def _groups(batch: Batch, work: PolicyWork | PpoWork | DistillWork) -> Iterator[tuple[Place, Line]]:
    """A line for each row; those of one sample stand together."""
    advantages = work.advantages
    for place, sample, row in rows_in(batch.groups):
        found = batch.groups[sample[0]].trajectories[sample[1]]
        yield (
            place,
            {
                "ordinal": found.ordinal,
                "sample": found.sample,
                "reward": found.reward,
                "advantage": advantages[place[0]][place[1]],
                "num_tokens": len(row.token_ids),
                "completion": found.text,
            },
        )


def _rows(
    parts: LearnerContext, batch: Batch, settings: SftSettings
) -> Iterator[tuple[Place, Line]]:
    assert parts.renderer is not None
    sequences = render_rows(batch.rows, parts.renderer, settings)
    for index, (row, sequence) in enumerate(zip(batch.rows, sequences, strict=True)):
        pairs = zip(sequence.token_ids, sequence.scored, strict=True)
        yield (
            (index, 0),
            {
                "ordinal": row.ordinal,
                "sample": 0,
                "reward": None,
                "advantage": None,
                "num_tokens": len(sequence.token_ids),
                "completion": parts.renderer.decode([token for token, flag in pairs if flag]),
            },
        )


def _preferences(batch: Batch, work: Work) -> Iterator[tuple[Place, Line]]:
    """Pairs and labelled answers: one sample a row, both answers of a pair together."""
    for index, (found, shape) in enumerate(zip(batch.rows, work.shapes(), strict=True)):
        yield (
            (index, 0),
            {
                "ordinal": found.ordinal,
                "sample": 0,
                "reward": None,
                "advantage": None,
                "num_tokens": sum(shape.completion_tokens),
                "completion": _describe_answers(found.row),
            },
        )


def _describe_answers(row: Row) -> str:
    if "chosen" in row:
        return f"chosen: {row['chosen']} | rejected: {row['rejected']}"
    return f"{'good' if row.get('label') else 'bad'}: {row.get('answer')}"
