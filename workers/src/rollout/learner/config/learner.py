"""What the learner needs to know, taken once from the worker configuration: numbers, no models of the API.

Everything that the manifest may ask for and this learner cannot do is refused here, by field, before
anything is loaded: a setting is never silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rollout.errors import SpecError
from rollout.learner.config.distill import DistillSettings, build_distill
from rollout.learner.config.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    build_optimizer_settings,
    build_schedule,
    default_rate,
)
from rollout.learner.config.policy import PolicySettings, build_policy
from rollout.learner.config.ppo import PpoSettings, build_ppo
from rollout.learner.config.preference import (
    PREFERENCES,
    PreferenceSettings,
    build_preference,
)
from rollout.learner.config.sft import SftSettings, build_sft
from rollout.learner.model.adapter import LoraSettings, build_lora
from rollout_api.v1alpha1.train import Train
from rollout_api.worker import WorkerConfig

CRITIC_LEARNING_RATE_DEFAULT = 1e-5

DtypeName = Literal["Float32", "BFloat16"]


AlgorithmSettings = (
    PolicySettings | PpoSettings | DistillSettings | SftSettings | PreferenceSettings
)
"""One member for each of ``learner.objectives.registry.KINDS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Everything that decides what a step does. ``max_grad_norm`` 0 does not clip."""

    algorithm: AlgorithmSettings
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    max_grad_norm: float
    micro_batch_tokens: int
    activation_checkpointing: bool
    dtype: DtypeName
    exact: bool
    hash_every_steps: int
    anchor_every_steps: int
    seed: int
    spec_digest: str
    lora: LoraSettings | None = None

    @property
    def num_epochs(self) -> int:
        """Passes over one step's batch."""
        return getattr(self.algorithm, "epochs", 1)


def build_settings(config: WorkerConfig) -> LearnerSettings:
    """Settings of a training run. Raises SpecError for what this learner cannot do."""
    spec, train = config.spec, config.spec.train
    if train is None:
        raise SpecError("spec.train: expected a training run; infer and evaluate have no learner")
    snapshots = spec.snapshots
    return LearnerSettings(
        algorithm=_algorithm(config, train),
        optimizer=build_optimizer_settings(train.optimizer, default_rate(train)),
        schedule=build_schedule(train),
        max_grad_norm=train.max_grad_norm,
        micro_batch_tokens=train.micro_batch_tokens,
        activation_checkpointing=train.activation_checkpointing,
        dtype=config.resolved.dtype,
        exact=spec.numerics.mode == "Exact",
        hash_every_steps=spec.numerics.hash_every_steps,
        anchor_every_steps=min(snapshots.every_steps, snapshots.max_replay_steps),
        seed=spec.seed,
        spec_digest=config.spec_digest,
        lora=build_lora(config),
    )


def _algorithm(config: WorkerConfig, train: Train) -> AlgorithmSettings:
    if train.algorithm.chosen not in BUILDERS:
        raise SpecError(
            f"spec.train.algorithm.{train.algorithm.chosen}: this learner cannot do that yet; there are"
            f" {', '.join(BUILDERS)}"
        )
    return BUILDERS[train.algorithm.chosen](config, train)


def _ppo(config: WorkerConfig, train: Train) -> PpoSettings:
    ppo = train.algorithm.ppo
    assert ppo is not None
    critic = build_optimizer_settings(ppo.critic.optimizer, CRITIC_LEARNING_RATE_DEFAULT)
    return build_ppo(config, train, critic)


BUILDERS: Mapping[str, Callable[[WorkerConfig, Train], AlgorithmSettings]] = {
    "sft": build_sft,
    "grpo": build_policy,
    "ppo": _ppo,
    "distill": build_distill,
    **dict.fromkeys(PREFERENCES, build_preference),
}
"""Settings by member of the API's ``algorithm``; what is not here is refused by name."""
