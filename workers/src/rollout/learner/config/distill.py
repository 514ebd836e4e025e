"""The numbers of distillation, taken once from the manifest."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.clip import Clipped
from rollout.learner.config.sampled import (
    SampledSettings,
    plan_correction,
    plan_end_bar,
    refuse_greedy,
)
from rollout_api.v1alpha1.training.train import Train
from rollout_api.worker import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings(SampledSettings):
    """Distillation from a teacher: ``spec.train.algorithm.distill``."""

    kl_coefficient: float = 1.0
    """Weight of the reverse KL in the advantage, per nat, >= 0."""
    kl_discount: float = 0.0
    """Of what later tokens cost, in [0, 1]; 0: each token answers for itself."""
    reward_coefficient: float = 0.0
    """Weighs the reward less its group's mean; 0: rewards are only recorded."""


def build_distill(config: WorkerConfig, train: Train) -> DistillSettings:
    """Settings from the manifest's ``distill``. Raises SpecError."""
    distill = train.algorithm.distill
    assert distill is not None
    refuse_greedy(train)
    return DistillSettings(
        loss=GrpoSettings(
            surrogate=Clipped(low=distill.clip_low, high=distill.clip_high),
            aggregation=distill.aggregation,
            correction=plan_correction(train, config.resolved.engine),
        ),
        old_logprobs=train.old_logprobs,
        temperature=train.sampling.temperature,
        width=train.sampling.new_tokens_max,
        end_bar=plan_end_bar(train, config.resolved.stop_token_ids),
        kl_coefficient=distill.kl_coefficient,
        kl_discount=distill.kl_discount,
        reward_coefficient=distill.reward_coefficient,
        epochs=distill.epochs,
        mini_batches=distill.mini_batches,
    )
