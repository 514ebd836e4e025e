"""The numbers of PPO, taken once from the manifest."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.algorithms.advantages.overlong import OverlongPenalty
from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.kl_controller import KlTarget
from rollout.algorithms.ppo import ReturnSettings, ValueSettings
from rollout.algorithms.surrogates.clip import Clipped
from rollout.learner.config.optimizer import OptimizerSettings, build_optimizer_settings
from rollout.learner.config.policy import plan_overlong
from rollout.learner.config.sampled import (
    SampledSettings,
    plan_correction,
    plan_end_bar,
    refuse_greedy,
)
from rollout_api.presets import CRITIC_LEARNING_RATE
from rollout_api.v1alpha1.training.algorithms import KlController
from rollout_api.v1alpha1.training.train import Train
from rollout_api.worker import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings:
    """How the critic moves."""

    optimizer: OptimizerSettings
    """Its own; the rate follows the policy's schedule from the critic's own peak."""
    max_grad_norm: float = 1.0
    """Of the critic's whole gradient; 0 does not clip."""
    warmup_steps: int = 0
    """In so many first steps the policy stays as it is (verl ``critic_warmup``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoSettings(SampledSettings):
    """PPO. ``loss.kl_coefficient`` is always 0: the coefficient, ``kl_coefficient`` at first, may move."""

    returns: ReturnSettings
    """How rewards become advantages; its ``reward_kl`` takes the KL from the reward."""
    value: ValueSettings
    """The critic's loss."""
    critic: CriticSettings
    """How the critic moves."""
    kl_coefficient: float = 0.0
    """beta of the first step, per nat; 0: no KL anywhere, and no reference."""
    kl_target: KlTarget | None = None
    """What an adaptive controller steers ``kl_coefficient`` to; None: it stays."""
    whitens: bool = True
    """Advantages are whitened over the mini-batch, all ranks."""
    bootstraps: bool = False
    """An answer cut by its token limit is worth the critic's value there; else 0."""
    overlong: OverlongPenalty | None = None
    """Soft penalty for length, off the reward; None: none."""

    @property
    def needs_reference(self) -> bool:
        """Whether a KL is taken anywhere."""
        return self.kl_coefficient > 0

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL is a term of the loss; else it is a part of the reward."""
        return self.returns.reward_kl is None


def build_ppo(config: WorkerConfig, train: Train) -> PpoSettings:
    """Settings from the manifest's ``ppo``. Raises SpecError."""
    ppo = train.algorithm.ppo
    assert ppo is not None
    refuse_greedy(train)
    critic = ppo.critic
    return PpoSettings(
        loss=GrpoSettings(
            surrogate=Clipped(low=ppo.clip_low, high=ppo.clip_high, dual=ppo.dual_clip),
            aggregation=ppo.aggregation,
            kl_estimator=ppo.kl_estimator,
            correction=plan_correction(train, config.resolved.engine),
            entropy_coefficient=ppo.entropy_coefficient,
        ),
        returns=ReturnSettings(
            gamma=ppo.gamma,
            gae_lambda=ppo.gae_lambda,
            reward_kl=ppo.kl_estimator if ppo.kl_placement == "Reward" else None,
        ),
        value=ValueSettings(
            clip=critic.value_clip,
            coefficient=critic.value_coefficient,
            aggregation=ppo.aggregation,
        ),
        critic=CriticSettings(
            optimizer=build_optimizer_settings(critic.optimizer, float(CRITIC_LEARNING_RATE)),
            max_grad_norm=critic.max_grad_norm,
            warmup_steps=critic.warmup_steps,
        ),
        old_logprobs=train.old_logprobs,
        temperature=train.sampling.temperature,
        width=train.sampling.new_tokens_max,
        end_bar=plan_end_bar(train, config.resolved.stop_token_ids),
        kl_coefficient=ppo.kl_coefficient,
        kl_target=_target(ppo.kl_controller),
        whitens=ppo.whiten_advantages,
        bootstraps=ppo.truncation == "Bootstrap",
        overlong=plan_overlong(train),
        epochs=ppo.epochs,
        mini_batches=ppo.mini_batches,
    )


def _target(controller: KlController) -> KlTarget | None:
    adaptive = controller.adaptive
    return None if adaptive is None else KlTarget(kl=adaptive.target, horizon=adaptive.horizon)
