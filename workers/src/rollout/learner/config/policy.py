"""The numbers of the GRPO family, taken once from the manifest; and the penalty for length."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.algorithms.advantages.groups import AdvantageBaseline, AdvantageScale
from rollout.algorithms.advantages.overlong import OverlongPenalty
from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.kl import KlEstimator
from rollout.errors import SpecError
from rollout.learner.config.sampled import (
    SampledSettings,
    plan_correction,
    plan_end_bar,
    refuse_greedy,
)
from rollout.learner.config.surrogates import build_surrogate, vanishes
from rollout_api.v1alpha1.training.algorithms import Grpo
from rollout_api.v1alpha1.training.train import Train
from rollout_api.worker import WorkerConfig

OVERLONG_PARTS = 5
"""DAPO's penalised zone is a fifth of the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardKl:
    """The KL to the reference as a price."""

    coefficient: float
    """beta, per nat, > 0."""
    estimator: KlEstimator = "K1"
    """How the KL is estimated from sampled tokens."""
    per_token: bool = False
    """Each token pays for what follows it, after baseline and scale; else a completion pays its sum before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings(SampledSettings):
    """Reinforcement learning on groups. With ``reward_kl`` the coefficient in the loss is 0."""

    advantage_scale: AdvantageScale
    """What rewards are divided by behind their baseline (TRL ``scale_rewards``)."""
    advantage_epsilon: float
    """Added to that divisor, > 0."""
    advantage_baseline: AdvantageBaseline = "GroupMean"
    """What is taken from a reward; ``LeaveOneOut`` is RLOO's."""
    reward_kl: RewardKl | None = None
    """None: no KL in the reward."""
    overlong: OverlongPenalty | None = None
    """Soft penalty for length, off the reward; None: none."""

    @property
    def needs_reference(self) -> bool:
        """Whether a KL is taken anywhere."""
        return self.loss.kl_coefficient > 0 or self.reward_kl is not None

    @property
    def skips_silent(self) -> bool:
        """Whether groups without variance have no gradient at all."""
        centred = self.advantage_baseline != "None" and self.advantage_scale != "Whiten"
        reached = self.needs_reference or self.loss.entropy_coefficient > 0
        return centred and not reached and vanishes(self.loss.surrogate)


def build_policy(config: WorkerConfig, train: Train) -> PolicySettings:
    """Settings from the manifest's ``grpo``. Raises SpecError."""
    grpo = train.algorithm.grpo
    assert grpo is not None
    refuse_greedy(train)
    in_loss = grpo.kl_placement == "Loss"
    return PolicySettings(
        loss=GrpoSettings(
            surrogate=build_surrogate(grpo),
            ratio=grpo.ratio,
            aggregation=grpo.aggregation,
            kl_coefficient=grpo.kl_coefficient if in_loss else 0.0,
            kl_estimator=grpo.kl_estimator,
            correction=plan_correction(train, config.resolved.engine),
            entropy_coefficient=grpo.entropy_coefficient,
        ),
        advantage_scale=grpo.advantage_scale,
        advantage_epsilon=grpo.advantage_epsilon,
        advantage_baseline=grpo.advantage_baseline,
        reward_kl=_reward_kl(grpo),
        overlong=plan_overlong(train),
        old_logprobs=train.old_logprobs,
        temperature=train.sampling.temperature,
        width=train.sampling.new_tokens_max,
        end_bar=plan_end_bar(train, config.resolved.stop_token_ids),
        epochs=grpo.epochs,
        mini_batches=grpo.mini_batches,
    )


def _reward_kl(grpo: Grpo) -> RewardKl | None:
    if grpo.kl_placement == "Loss" or grpo.kl_coefficient == 0:
        return None
    if grpo.kl_estimator in ("K3Plus", "K3Corrected"):
        raise SpecError(
            f"spec.train.algorithm.grpo.klEstimator: {grpo.kl_estimator} shapes a gradient, and a"
            " reward has none; use K1 or K3, or klPlacement: Loss"
        )
    return RewardKl(
        coefficient=grpo.kl_coefficient,
        estimator=grpo.kl_estimator,
        per_token=grpo.kl_placement == "TokenReward",
    )


def plan_overlong(train: Train) -> OverlongPenalty | None:
    """The soft penalty for length, None when off. Raises SpecError for a zone without a beginning."""
    said = train.overlong_penalty
    if said is None:
        return None
    limit = train.sampling.new_tokens_max
    buffer = said.buffer_tokens or max(1, limit // OVERLONG_PARTS)
    if buffer >= limit:
        raise SpecError(
            f"spec.train.overlongPenalty.bufferTokens: expected fewer than the {limit} tokens of"
            f" sampling.maxNewTokens, got {buffer}: every completion would be penalised"
        )
    return OverlongPenalty(limit=limit, buffer=buffer, penalty=said.penalty)
