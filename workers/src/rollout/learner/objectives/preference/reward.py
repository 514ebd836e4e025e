"""A step of a Bradley-Terry reward model: both answers of a pair scored at their last token.

Axes: S answers of a micro-batch, P pairs; the last axis of size 2 is chosen, rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.preference.reward_model import reward_model_losses
from rollout.learner.config.preference import RewardSettings, build_rm
from rollout.learner.context import LearnerContext
from rollout.learner.model.scorer import answer_scores, load_scorer
from rollout.learner.objectives.contract import MicroLoss, Work
from rollout.learner.objectives.objective import Objective
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update
from rollout.learner.objectives.preference.batch import PreferenceBatch, positions_of
from rollout.learner.objectives.preference.data import PairTokens, digest_pairs, render_pairs
from rollout.learner.objectives.preference.pairs import describe_pairs
from rollout.protocol.messages import Batch


class RewardWork:
    """The pairs of one step under a model with a scalar head."""

    def __init__(
        self, pairs: Sequence[PairTokens], settings: RewardSettings, device: torch.device
    ) -> None:
        self.pairs = pairs
        self._settings = settings
        self._device = device
        self._batch = PreferenceBatch(pairs, settings.max_length, device)

    def shapes(self) -> Sequence[GroupShape]:
        """One sample a pair: its two answers stay together."""
        return self._batch.shapes()

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """Nothing is needed before the update."""

    def denominators(self, update: Update) -> Denominators:
        """Pairs of the whole batch."""
        return Denominators(num_tokens=0, num_sequences=len(update.chunks()), width=1)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """The share of one row of pairs."""
        positions = positions_of(micro)
        groups = [self._batch.groups[i] for i in positions]
        answers = [(group.prompt_ids, group.completion_ids) for group in groups]
        scores_P2 = answer_scores(model, answers, self._device).view(-1, 2)
        margins_P = torch.tensor(
            [self.pairs[i].margin for i in positions], dtype=scores_P2.dtype, device=self._device
        )
        found = reward_model_losses(
            scores_P2[:, 0], scores_P2[:, 1], margins_P, self._settings.loss
        )
        loss = found.losses_P.sum() / max(whole.num_sequences, 1)
        return MicroLoss(
            loss=loss, sums={"preference_loss": loss.detach(), **describe_pairs(found)}
        )

    def filtered(self) -> Mapping[int, str]:
        """Pairs that are too long."""
        return self._batch.left_out

    def metrics(self, step: int) -> dict[str, Any]:
        """Lengths, and how many pairs were left out."""
        del step
        return self._batch.describe()


def _build_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, RewardSettings)
    assert parts.renderer is not None
    pairs = render_pairs(batch.rows, parts.renderer)
    return RewardWork(pairs, algorithm, parts.parallel.device), digest_pairs(pairs)


RM = Objective(
    name="rm",
    settings=RewardSettings,
    build_settings=build_rm,
    build_work=_build_work,
    load=lambda path, algorithm: load_scorer(path, algorithm.seed),
)
