"""A step of supervised fine-tuning: rendered rows, cross entropy on the tokens to learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.sft import sft_loss
from rollout.data.rows.mapping import BadRecord, training_messages, training_tools
from rollout.errors import DataError
from rollout.learner import hash_chain
from rollout.learner.config.learner import LearnerSettings
from rollout.learner.config.sft import SftSettings, build_sft
from rollout.learner.context import LearnerContext
from rollout.learner.forward.packed_rows import (
    PackedRow,
    SequenceTokens,
    build_sequence_row,
    token_logprobs,
)
from rollout.learner.objectives.contract import MicroLoss, TokenView, Work
from rollout.learner.objectives.metrics import describe_lengths
from rollout.learner.objectives.objective import Objective
from rollout.learner.objectives.plan import GroupShape, MicroBatch, PlanRules, Update
from rollout.protocol.messages import Batch, DataRow
from rollout.seams import Renderer


def render_rows(
    rows: Sequence[DataRow], renderer: Renderer, settings: SftSettings
) -> list[SequenceTokens]:
    """Token ids and what to learn of each row, cut at the end to ``max_length``.

    Raises DataError for a row without an answer.
    """
    return [_render(row, renderer, settings) for row in rows]


def _render(row: DataRow, renderer: Renderer, settings: SftSettings) -> SequenceTokens:
    try:
        messages, tools = training_messages(row.row), training_tools(row.row)
    except BadRecord as error:
        raise DataError(f"row {row.ordinal} of the training data {error}") from error
    ids, mask = renderer.render_training(messages, tools)
    cut = len(ids) > settings.max_length
    ids, mask = ids[: settings.max_length], mask[: settings.max_length]
    scored = mask if settings.loss == "CompletionOnly" else (1,) * len(ids)
    return SequenceTokens(token_ids=tuple(ids), scored=(0, *scored[1:]), cut=cut)


class SftWork:
    """The rows of one step."""

    def __init__(
        self,
        sequences: Sequence[SequenceTokens],
        device: torch.device,
        label_smoothing: float = 0.0,
    ) -> None:
        self._sequences = sequences
        self._label_smoothing = label_smoothing
        self._device = device
        self._num_targets = [sum(sequence.scored) for sequence in sequences]

    def shapes(self) -> Sequence[GroupShape]:
        """One sequence a group; a row with nothing to learn (cut before its answer) has none."""
        return [
            GroupShape(prompt_tokens=0, completion_tokens=(len(s.token_ids),) if targets else ())
            for s, targets in zip(self._sequences, self._num_targets, strict=True)
        ]

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """Nothing is needed before the update."""

    def denominators(self, update: Update) -> Denominators:
        """Tokens to learn over the whole batch."""
        targets = [self._num_targets[chunk.group] for chunk in update.chunks()]
        return Denominators(num_tokens=sum(targets), num_sequences=len(targets), width=1)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """Cross entropy of one packed row."""
        row = self._row(micro)
        smoothing = self._label_smoothing
        stats = token_logprobs(model, row, entropy=True, spread=smoothing > 0)
        assert stats.entropy_C is not None
        mask = torch.ones_like(stats.logprobs_C)
        loss = sft_loss(
            stats.logprobs_C,
            mask,
            whole.num_tokens,
            mean_logprobs_C=stats.mean_logprobs_C,
            label_smoothing=smoothing,
        )
        sums = {
            "tokens": loss.new_tensor(stats.logprobs_C.shape[0]),
            "sft_loss": loss.detach(),
            "entropy": stats.entropy_C.detach().sum(),
        }
        tokens = TokenView(
            lengths=row.lengths,
            logprobs_C=stats.logprobs_C.detach(),
            entropy_C=stats.entropy_C.detach(),
            mask_C=mask,
        )
        return MicroLoss(loss=loss, sums=sums, tokens=tokens)

    def filtered(self) -> Mapping[int, str]:
        """Rows that ``max_length`` cut before anything to learn."""
        return {i: "length" for i, targets in enumerate(self._num_targets) if not targets}

    def metrics(self, step: int) -> dict[str, Any]:
        """Lengths, how many rows were cut, and how many had nothing to learn."""
        del step
        lengths = [len(sequence.token_ids) for sequence in self._sequences]
        return {
            "num_sequences": len(lengths),
            "num_tokens": sum(lengths),
            "num_excluded": 0,
            "num_cut": sum(sequence.cut for sequence in self._sequences),
            "num_without_target": self._num_targets.count(0),
            **describe_lengths(lengths),
        }

    def _row(self, micro: MicroBatch) -> PackedRow:
        chosen = [self._sequences[chunk.group] for chunk in micro.chunks]
        return build_sequence_row(chosen).to(self._device)


def _build_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, SftSettings)
    assert parts.renderer is not None
    sequences = render_rows(batch.rows, parts.renderer, algorithm)
    work = SftWork(sequences, parts.parallel.device, algorithm.label_smoothing)
    return work, hash_chain.digest_sequences(sequences)


def _plan_rules(settings: LearnerSettings, num_ranks: int) -> PlanRules:
    assert isinstance(settings.algorithm, SftSettings)
    tokens_max = settings.micro_batch_tokens if settings.algorithm.packing else 0
    return PlanRules(tokens_max=tokens_max, num_ranks=num_ranks)


SFT = Objective(
    name="sft",
    settings=SftSettings,
    build_settings=build_sft,
    build_work=_build_work,
    plan_rules=_plan_rules,
)
