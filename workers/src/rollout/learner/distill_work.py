"""A step of distillation: groups of sampled completions that a frozen teacher has scored token by token.

Axes as in ``rollout.algorithms``: C scored tokens of a micro-batch, P groups, G samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.distillation import Distilled, distil
from rollout.algorithms.grpo import PolicyTokens, grpo_loss
from rollout.learner.completions import Completions, Sample, samples_of
from rollout.learner.distill_settings import DistillSettings
from rollout.learner.forward import token_logprobs
from rollout.learner.metrics import describe_rewards
from rollout.learner.plan import GroupShape, MicroBatch, Update
from rollout.learner.work import MicroLoss, TokenView
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
        self._completions = Completions(groups, desk.device, width=settings.width, dtype=desk.dtype)
        self._settings = settings
        self._desk = desk
        self._earned = _earned(groups, settings.reward_coefficient)
        self._old: dict[Sample, Tensor] = {}
        self._teacher: dict[Sample, Tensor] = {}

    @property
    def advantages(self) -> list[list[float | None]]:
        """Means over tokens by group and sample, after ``prepare``; None for what other ranks scored.

        Where nothing needed the policy's own logprobs before the update, from the actors'.
        """
        return [
            [self._mean_advantage((g, s)) for s in range(len(group.trajectories))]
            for g, group in enumerate(self._completions.groups)
        ]

    def shapes(self) -> Sequence[GroupShape]:
        """Lengths; every group learns, since a teacher needs no difference between siblings."""
        return self._completions.shapes()

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """The teacher's logprobs, and the policy's where several updates need them, without gradient."""
        # One mini-batch is cut the same in every epoch; of several, a rank meets others each time.
        scored = passes if self._settings.mini_batches > 1 else passes[:1]
        self._score(self._desk.teacher, scored, self._teacher)
        if self._settings.old_logprobs == "Learner" and self._settings.num_updates > 1:
            self._score(model, scored, self._old)

    def denominators(self, update: Update) -> Denominators:
        """Tokens and sequences of the mini-batch that count in the loss."""
        return self._completions.denominators(update)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """The loss on one row."""
        row = self._completions.row(micro)
        stats = token_logprobs(model, row, temperature=self._settings.temperature, entropy=True)
        assert stats.entropy_C is not None
        old_C = self._old_logprobs(micro, stats.logprobs_C)
        mask_C, sequence_C = self._mask(micro), self._completions.sequences(row)
        taught = self._distil(old_C, self._stored(micro, self._teacher), mask_C, sequence_C)
        tokens = PolicyTokens(
            logprobs_C=stats.logprobs_C,
            old_logprobs_C=old_C,
            actor_logprobs_C=self._actor_logprobs(micro),
            advantages_C=taught.advantages_C.to(old_C.dtype) + self._earned_by(micro),
            mask_C=mask_C,
            sequence_C=sequence_C,
            entropy_C=stats.entropy_C.detach(),
        )
        found = grpo_loss(tokens, self._settings.loss, whole)
        view = TokenView(
            lengths=row.lengths,
            logprobs_C=stats.logprobs_C.detach(),
            entropy_C=stats.entropy_C.detach(),
            mask_C=mask_C,
            old_logprobs_C=old_C,
            actor_logprobs_C=tokens.actor_logprobs_C,
        )
        sums = {**found.sums, "teacher_kl": taught.kl_C.sum()}
        return MicroLoss(loss=found.loss, sums=sums, maxima=found.maxima, tokens=view)

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

    def _score(
        self,
        model: nn.Module,
        passes: Sequence[Sequence[MicroBatch]],
        store: dict[Sample, Tensor],
    ) -> None:
        with torch.no_grad():
            for micro in chain.from_iterable(passes):
                row = self._completions.row(micro)
                stats = token_logprobs(model, row, temperature=self._settings.temperature)
                parts = stats.logprobs_C.split(row.lengths)
                store.update(zip(samples_of(micro), parts, strict=True))

    def _distil(self, old_C: Tensor, teacher_C: Tensor, mask_C: Tensor, of_C: Tensor) -> Distilled:
        return distil(
            old_C,
            teacher_C,
            mask_C,
            of_C,
            coefficient=self._settings.kl_coefficient,
            discount=self._settings.kl_discount,
        )

    def _old_logprobs(self, micro: MicroBatch, current: Tensor) -> Tensor:
        """Those of before the step: stored, the actors', or (one on-policy update) the current ones."""
        if self._settings.old_logprobs == "Actor":
            return self._actor_logprobs(micro)
        return self._stored(micro, self._old) if self._old else current.detach()

    def _earned_by(self, micro: MicroBatch) -> Tensor:
        values = [
            self._earned[sample]
            for sample in samples_of(micro)
            for _ in self._completions.trajectory(sample).token_ids
        ]
        return torch.tensor(values, dtype=self._desk.dtype, device=self._desk.device)

    def _actor_logprobs(self, micro: MicroBatch) -> Tensor:
        return self._completions.per_token(micro, lambda t: t.actor_logprobs)

    def _mask(self, micro: MicroBatch) -> Tensor:
        return self._completions.per_token(micro, lambda t: t.loss_mask)

    def _stored(self, micro: MicroBatch, store: Mapping[Sample, Tensor]) -> Tensor:
        return self._completions.stored(micro, store)

    def _mean_advantage(self, sample: Sample) -> float | None:
        if sample not in self._teacher:
            return None
        trajectory = self._completions.trajectory(sample)
        old_C = self._old.get(sample, torch.tensor(trajectory.actor_logprobs))
        mask_C = torch.tensor(trajectory.loss_mask, dtype=torch.float64)
        none_C = torch.zeros(len(trajectory.loss_mask), dtype=torch.long)
        found = self._distil(old_C.cpu(), self._teacher[sample].cpu(), mask_C, none_C)
        mean = found.advantages_C.sum() / mask_C.sum().clamp(min=1)
        return float(mean) + self._earned[sample]


def _earned(groups: Sequence[TrajectoryGroup], coefficient: float) -> dict[Sample, float]:
    """What each sample's reward adds to its advantages: the coefficient times reward less group's mean."""
    means = [fmean(t.reward for t in group.trajectories) for group in groups]
    return {
        (g, s): coefficient * (t.reward - means[g])
        for g, group in enumerate(groups)
        for s, t in enumerate(group.trajectories)
    }
