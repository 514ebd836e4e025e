"""A step of PPO: groups of sampled completions, a critic's advantages, two losses per mini-batch.

Refuses samples of several rows (``learner.batch_step``), so that a row's place is its sample's.

Before the first update the policy, the reference and the critic score every sample once; old logprobs,
values, advantages and returns then stay as they are over all epochs and mini-batches.

Axes as in ``rollout.algorithms``: C scored tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rollout.algorithms.advantages.whitening import Moments, whiten_by
from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.ppo import ValueTokens, ppo_value_loss
from rollout.learner import hash_chain
from rollout.learner.config.ppo import PpoSettings, build_ppo
from rollout.learner.context import LearnerContext
from rollout.learner.forward.packed_rows import PackedRow, token_logprobs
from rollout.learner.model.critic import token_values
from rollout.learner.model.kl_control import KlControl
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.completions import Completions, Sample, places_of
from rollout.learner.objectives.contract import MicroLoss, ValuePart, Work
from rollout.learner.objectives.metrics import describe_rewards
from rollout.learner.objectives.objective import Objective, several_passes
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update
from rollout.learner.objectives.ppo_estimates import Before, Estimates, estimate, mean_advantage
from rollout.learner.objectives.sampled_loss import (
    Terms,
    choose_old_logprobs,
    compute_stats,
    sampled_loss,
)
from rollout.protocol.messages import Batch
from rollout.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Helpers:
    """The models beside the policy, and this rank's place. ``reference`` is None without a KL."""

    critic: nn.Module
    reference: nn.Module | None
    parallel: Parallel


class PpoWork:
    """The groups of one step; keeps what was known before the first update."""

    def __init__(
        self,
        groups: Sequence[TrajectoryGroup],
        settings: PpoSettings,
        helpers: Helpers,
        kl_coefficient: float,
    ) -> None:
        self._completions = Completions(groups, helpers.parallel.device, settings)
        self._settings = settings
        self._helpers = helpers
        self._kl_coefficient = kl_coefficient
        self._estimates: Estimates | None = None
        self._moments = Moments()

    @property
    def advantages(self) -> list[list[float]]:
        """Mean advantage by group and sample, before whitening; after ``prepare``."""
        return [
            [mean_advantage(self.estimates, (g, s)) for s in range(len(group.trajectories))]
            for g, group in enumerate(self._completions.groups)
        ]

    @property
    def estimates(self) -> Estimates:
        """What was known before the first update; after ``prepare``."""
        assert self._estimates is not None, "prepare comes first"
        return self._estimates

    def shapes(self) -> Sequence[GroupShape]:
        """Lengths; every group learns, since a critic needs no difference between siblings."""
        return self._completions.shapes()

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """Score every sample once (the first epoch holds them all) and estimate advantages."""
        first = passes[: len(passes) // self._settings.epochs]
        own: dict[Sample, Before] = {}
        with torch.no_grad():
            for micro in (micro for update in first for micro in update):
                own.update(self._score(model, micro))
        before: dict[Sample, Before] = {}
        for found in self._helpers.parallel.gather(own, dict[Sample, Before]):
            before.update({sample: b for sample, b in found.items() if sample not in before})
        self._estimates = estimate(self._completions, before, self._settings, self._kl_coefficient)

    def denominators(self, update: Update) -> Denominators:
        """Counts of one mini-batch; its advantages are whitened together from here on."""
        if self._settings.whitens:
            samples = [(c.group, s) for c in update.chunks() for s in c.samples]
            self._moments = self.estimates.moments(samples)
        return self._completions.denominators(update)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """The policy's loss on one row."""
        known = self._completions
        stats = compute_stats(model, known, micro, self._settings)
        old = {s: self.estimates.before[s].old_logprobs for s in places_of(micro)}
        terms = Terms(
            old_logprobs_C=choose_old_logprobs(known, micro, self._settings, old, stats.logprobs_C),
            advantages_C=self._advantages(micro),
            reference_logprobs_C=self._reference_logprobs(micro),
        )
        return sampled_loss(known, micro, stats, terms, self._loss_settings(), whole)

    def value_loss(self, critic: nn.Module, micro: MicroBatch, whole: Denominators) -> ValuePart:
        """The critic's loss on one row."""
        row = self._completions.row(micro)
        old = {s: self.estimates.before[s].values for s in places_of(micro)}
        tokens = ValueTokens(
            values_C=token_values(critic, row),
            old_values_C=self._completions.stored(micro, old),
            returns_C=self._completions.stored(micro, self.estimates.returns),
            mask_C=self._completions.masks(micro),
            sequence_C=self._completions.sequences(row),
        )
        found = ppo_value_loss(tokens, self._settings.value, whole)
        return ValuePart(loss=found.loss, sums=found.sums)

    def filtered(self) -> Mapping[int, str]:
        """None: every group is consumed."""
        return {}

    def metrics(self, step: int) -> dict[str, Any]:
        """Rewards, lengths and staleness of the batch; values, returns, advantages and KL."""
        found = {
            **describe_rewards(self._completions.groups, step),
            **self.estimates.describe(),
        }
        if self._helpers.reference is None:
            return found
        return {**found, "kl_per_answer": self.estimates.kl, "kl_coefficient": self._kl_coefficient}

    def _score(self, model: nn.Module, micro: MicroBatch) -> dict[Sample, Before]:
        row = self._completions.row(micro)
        samples = places_of(micro)
        values, ends = self._values(micro)
        old = self._split(self._old(model, micro), row.lengths)
        reference = self._helpers.reference
        references: Sequence[Tensor | None] = [None] * len(samples)
        if reference is not None:
            references = self._split(self._logprobs(reference, row.unrouted()), row.lengths)
        return {
            sample: Before(
                values=values[i],
                old_logprobs=old[i],
                reference_logprobs=references[i],
                end_value=ends[i],
            )
            for i, sample in enumerate(samples)
        }

    def _values(self, micro: MicroBatch) -> tuple[Sequence[Tensor], Sequence[float]]:
        """Values by token of each sample, and after its last token where that is asked for."""
        if not self._settings.bootstraps:
            row = self._completions.row(micro)
            parts = self._split(token_values(self._helpers.critic, row), row.lengths)
            return parts, [0.0] * len(parts)
        row = self._completions.longer_row(micro)
        parts = self._split(token_values(self._helpers.critic, row), row.lengths)
        return [part[:-1] for part in parts], [float(part[-1]) for part in parts]

    def _old(self, model: nn.Module, micro: MicroBatch) -> Tensor:
        """The policy's logprobs; the actors' where those are wanted, or nothing reads the policy's."""
        computed = self._settings.old_logprobs == "Learner"
        read = self._settings.num_updates > 1 or self._helpers.reference is not None
        if computed and read:
            return self._logprobs(model, self._completions.row(micro))
        return self._completions.actor_logprobs(micro)

    def _logprobs(self, model: nn.Module, row: PackedRow) -> Tensor:
        return token_logprobs(model, row, temperature=self._settings.temperature).logprobs_C

    @staticmethod
    def _split(values_C: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
        return values_C.float().cpu().split(list(lengths))

    def _reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        if self._helpers.reference is None:
            return None
        found = {s: self.estimates.before[s].reference_logprobs for s in places_of(micro)}
        return self._completions.stored(micro, {s: r for s, r in found.items() if r is not None})

    def _advantages(self, micro: MicroBatch) -> Tensor:
        """As the loss sees them, ``[C]`` float32: whitened over the mini-batch when asked."""
        mask_C = self._completions.masks(micro)
        parts = [self.estimates.advantages[sample] for sample in places_of(micro)]
        advantages_C = torch.cat(parts).to(mask_C.device)
        if self._settings.whitens:
            advantages_C = whiten_by(advantages_C, mask_C, self._moments)
        return advantages_C.float()

    def _loss_settings(self) -> GrpoSettings:
        if not self._settings.kl_in_loss:
            return self._settings.loss
        return replace(self._settings.loss, kl_coefficient=self._kl_coefficient)


def _build_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    trainer, algorithm = parts.trainer, parts.trainer.settings.algorithm
    assert isinstance(algorithm, PpoSettings)
    assert trainer.critic is not None
    helpers = Helpers(
        critic=trainer.critic.model, reference=parts.reference, parallel=parts.parallel
    )
    coefficient = 0.0 if trainer.control is None else trainer.control.coefficient
    work = PpoWork(batch.groups, algorithm, helpers, coefficient)
    return work, hash_chain.digest_groups(batch.groups)


def _kl_control(algorithm: PpoSettings) -> KlControl | None:
    if algorithm.kl_coefficient == 0:
        return None
    return KlControl(algorithm.kl_coefficient, algorithm.kl_target)


PPO = Objective(
    name="ppo",
    settings=PpoSettings,
    build_settings=build_ppo,
    build_work=_build_work,
    plan_rules=several_passes,
    critic=lambda algorithm: algorithm.critic,
    kl_control=_kl_control,
)
