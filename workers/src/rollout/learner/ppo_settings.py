"""The numbers of PPO, taken once from the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.kl_controller import KlTarget
from rollout.algorithms.ppo import ReturnSettings, ValueSettings
from rollout_api.v1alpha1.algorithms import KlController, Ppo

if TYPE_CHECKING:
    from rollout.learner.settings import OptimizerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings:
    """How the critic moves. ``max_grad_norm`` 0 does not clip.

    In the first ``warmup_steps`` steps the policy stays as it is. The learning rate follows the
    policy's schedule from the critic's own peak.
    """

    optimizer: OptimizerSettings
    max_grad_norm: float = 1.0
    warmup_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoSettings:
    """PPO. ``loss.kl_coefficient`` is always 0: the coefficient, ``kl_coefficient`` at first, may move.

    ``kl_in_loss`` False takes the KL from the reward (``returns.reward_kl``). ``bootstraps``: an answer
    cut by its token limit is worth the critic's value there. ``width`` as in ``PolicySettings``.
    """

    loss: GrpoSettings
    returns: ReturnSettings
    value: ValueSettings
    critic: CriticSettings
    old_logprobs: Literal["Learner", "Actor"]
    temperature: float
    width: int
    kl_coefficient: float = 0.0
    kl_target: KlTarget | None = None
    whitens: bool = True
    bootstraps: bool = False
    epochs: int = 1
    mini_batches: int = 1

    @property
    def num_updates(self) -> int:
        """Optimizer updates of one step."""
        return self.epochs * self.mini_batches

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL is a term of the loss; else it is a part of the reward."""
        return self.returns.reward_kl is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What PPO takes from beside its own section of the manifest. ``loss`` is of a coefficient of 0."""

    loss: GrpoSettings
    critic_optimizer: OptimizerSettings
    old_logprobs: Literal["Learner", "Actor"]
    temperature: float
    width: int


def build_ppo_settings(ppo: Ppo, around: Around) -> PpoSettings:
    """Settings from the manifest's ``ppo``."""
    critic = ppo.critic
    return PpoSettings(
        loss=around.loss,
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
            optimizer=around.critic_optimizer,
            max_grad_norm=critic.max_grad_norm,
            warmup_steps=critic.warmup_steps,
        ),
        old_logprobs=around.old_logprobs,
        temperature=around.temperature,
        width=around.width,
        kl_coefficient=ppo.kl_coefficient,
        kl_target=_target(ppo.kl_controller),
        whitens=ppo.whiten_advantages,
        bootstraps=ppo.truncation == "Bootstrap",
        epochs=ppo.epochs,
        mini_batches=ppo.mini_batches,
    )


def _target(controller: KlController) -> KlTarget | None:
    adaptive = controller.adaptive
    return None if adaptive is None else KlTarget(kl=adaptive.target, horizon=adaptive.horizon)
