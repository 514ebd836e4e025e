"""A step of distillation: groups of sampled completions that a frozen teacher has scored token by token.

Axes as in ``rollout.algorithms``: C scored tokens of a micro-batch, P groups, G samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.distillation import Distilled, distil
from rollout.learner import hash_chain
from rollout.learner.config.distill import DistillSettings, build_distill
from rollout.learner.context import LearnerContext
from rollout.learner.objectives.completions import (
    Completions,
    RowPlace,
    Sample,
    rows_in,
    samples_in,
)
from rollout.learner.objectives.contract import MicroLoss, Work
from rollout.learner.objectives.metrics import describe_rewards
from rollout.learner.objectives.objective import Objective, several_passes
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update
from rollout.learner.objectives.sampled_loss import (
    Terms,
    choose_old_logprobs,
    compute_stats,
    sampled_loss,
)
from rollout.protocol.messages import Batch
from rollout.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where this rank computes, and the frozen teacher beside the policy.

    ``dtype`` is of recorded numbers on the device.
    """

    teacher: nn.Module
    device: torch.device
    dtype: torch.dtype = torch.float32


class DistillWork:
    """The groups of one step; keeps the teacher's and the old logprobs between updates."""

    def __init__(
        self, groups: Sequence[TrajectoryGroup], settings: DistillSettings, desk: Desk
    ) -> None:
        self._completions = Completions(groups, desk.device, settings, dtype=desk.dtype)
        self._settings = settings
        self._desk = desk
        self._earned = _earned(groups, settings.reward_coefficient)
        self._old: dict[RowPlace, Tensor] = {}
        self._teacher: dict[RowPlace, Tensor] = {}

    @property
    def advantages(self) -> list[list[float | None]]:
        """Means over tokens by group and row, after ``prepare``; None for what other ranks scored.

        Where nothing needed the policy's own logprobs before the update, from the actors'.
        """
        found: list[list[float | None]] = [[] for _ in self._completions.groups]
        for place, _, _ in rows_in(self._completions.groups):
            found[place[0]].append(self._mean_advantage(place))
        return found

    def shapes(self) -> Sequence[GroupShape]:
        """Lengths; every group learns, since a teacher needs no difference between siblings."""
        return self._completions.shapes()

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """The teacher's logprobs, and the policy's where several updates need them, without gradient."""
        self._teacher = self._completions.score(
            self._desk.teacher, passes, self._settings, routed=False
        )
        if self._settings.computes_old_logprobs:
            self._old = self._completions.score(model, passes, self._settings)

    def denominators(self, update: Update) -> Denominators:
        """Tokens and sequences of the mini-batch that count in the loss."""
        return self._completions.denominators(update)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """The loss on one row."""
        known, settings = self._completions, self._settings
        stats = compute_stats(model, known, micro, settings)
        old_C = choose_old_logprobs(known, micro, settings, self._old, stats.logprobs_C)
        teacher_C, sequence_C = (
            known.stored(micro, self._teacher),
            known.sequences(known.row(micro)),
        )
        taught = self._distil(old_C, teacher_C, known.masks(micro), sequence_C)
        earned_C = known.per_sample(micro, lambda sample: self._earned[sample])
        terms = Terms(
            old_logprobs_C=old_C, advantages_C=taught.advantages_C.to(old_C.dtype) + earned_C
        )
        found = sampled_loss(known, micro, stats, terms, settings.loss, whole)
        return replace(found, sums={**found.sums, "teacher_kl": taught.kl_C.sum()})

    def filtered(self) -> Mapping[int, str]:
        """None: every group is consumed."""
        return {}

    def metrics(self, step: int) -> dict[str, Any]:
        """Lengths and staleness of the batch; rewards where any are taken."""
        found = describe_rewards(self._completions.groups, step)
        if not found["reward_by_source"]:
            for name in [name for name in found if name.startswith("reward")]:
                del found[name]
        return found

    def _distil(self, old_C: Tensor, teacher_C: Tensor, mask_C: Tensor, of_C: Tensor) -> Distilled:
        return distil(
            old_C,
            teacher_C,
            mask_C,
            of_C,
            coefficient=self._settings.kl_coefficient,
            discount=self._settings.kl_discount,
        )

    def _mean_advantage(self, place: RowPlace) -> float | None:
        if place not in self._teacher:
            return None
        row = self._completions.tokens(place)
        old_C = self._old.get(place, torch.tensor(row.actor_logprobs))
        mask_C = torch.tensor(row.loss_mask, dtype=torch.float64)
        none_C = torch.zeros(len(row.loss_mask), dtype=torch.long)
        found = self._distil(old_C.cpu(), self._teacher[place].cpu(), mask_C, none_C)
        mean = found.advantages_C.sum() / mask_C.sum().clamp(min=1)
        return float(mean) + self._earned[self._completions.owner(place)]


def _earned(groups: Sequence[TrajectoryGroup], coefficient: float) -> dict[Sample, float]:
    """What each sample's reward adds to its advantages: the coefficient times reward less group's mean."""
    means = [fmean(t.reward for t in group.trajectories) for group in groups]
    return {
        sample: coefficient * (trajectory.reward - means[sample[0]])
        for sample, trajectory in samples_in(groups)
    }


def _build_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, DistillSettings)
    assert parts.teacher is not None
    desk = Desk(teacher=parts.teacher, device=parts.parallel.device)
    return DistillWork(batch.groups, algorithm, desk), hash_chain.digest_groups(batch.groups)


DISTILL = Objective(
    name="distill",
    settings=DistillSettings,
    build_settings=build_distill,
    build_work=_build_work,
    plan_rules=several_passes,
)
