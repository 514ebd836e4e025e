"""What the learner needs to know, taken once from the worker configuration: numbers, no models of the API.

Everything that the manifest may ask for and this learner cannot do is refused here, by field, before
anything is loaded: a setting is never silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from rollout.errors import SpecError
from rollout.learner.adapter import LoraSettings, build_lora
from rollout.learner.distill_settings import DistillSettings, build_distill
from rollout.learner.policy_settings import (
    PolicySettings,
    build_policy,
)
from rollout.learner.ppo_settings import PpoSettings, build_ppo
from rollout.learner.preference_settings import (
    PREFERENCES,
    PreferenceSettings,
    build_preference,
)
from rollout_api.v1alpha1.optimizer import Decay, Optimizer
from rollout_api.v1alpha1.train import Train
from rollout_api.worker import WorkerConfig

LEARNING_RATE_DEFAULTS = {"sft": 2e-5}
LEARNING_RATE_DEFAULT = 1e-6
CRITIC_LEARNING_RATE_DEFAULT = 1e-5

DtypeName = Literal["Float32", "BFloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """``kind`` ``adamw`` reads the betas, epsilon and decay; ``sgd`` reads momentum."""

    kind: Literal["adamw", "sgd"]
    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """The learning rate over steps. ``horizon_steps`` and ``minimum_ratio`` shape a decay."""

    kind: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = 0
    horizon_steps: int = 1
    minimum_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """Supervised fine-tuning. ``packing`` False computes every sequence in a row of its own."""

    loss: Literal["CompletionOnly", "Full"]
    packing: bool
    max_length: int
    label_smoothing: float = 0.0


AlgorithmSettings = (
    PolicySettings | PpoSettings | DistillSettings | SftSettings | PreferenceSettings
)
"""One member for each of ``learner.kinds.KINDS``."""


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
        optimizer=_optimizer(train.optimizer, _default_rate(train)),
        schedule=_schedule(train),
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


def _sft(config: WorkerConfig, train: Train) -> SftSettings:
    del config
    sft = train.algorithm.sft
    assert sft is not None
    return SftSettings(
        loss=sft.loss,
        packing=sft.packing,
        max_length=sft.max_length,
        label_smoothing=sft.label_smoothing,
    )


def _ppo(config: WorkerConfig, train: Train) -> PpoSettings:
    ppo = train.algorithm.ppo
    assert ppo is not None
    critic = _optimizer(ppo.critic.optimizer, CRITIC_LEARNING_RATE_DEFAULT)
    return build_ppo(config, train, critic)


BUILDERS: Mapping[str, Callable[[WorkerConfig, Train], AlgorithmSettings]] = {
    "sft": _sft,
    "grpo": build_policy,
    "ppo": _ppo,
    "distill": build_distill,
    **dict.fromkeys(PREFERENCES, build_preference),
}
"""Settings by member of the API's ``algorithm``; what is not here is refused by name."""


def _default_rate(train: Train) -> float:
    return LEARNING_RATE_DEFAULTS.get(train.algorithm.chosen, LEARNING_RATE_DEFAULT)


def _optimizer(chosen: Optimizer, default: float) -> OptimizerSettings:
    if chosen.adamw is not None:
        adamw = chosen.adamw
        return OptimizerSettings(
            kind="adamw",
            learning_rate=default if adamw.learning_rate is None else adamw.learning_rate,
            beta1=adamw.beta1,
            beta2=adamw.beta2,
            epsilon=adamw.epsilon,
            weight_decay=adamw.weight_decay,
        )
    assert chosen.sgd is not None
    sgd = chosen.sgd
    rate = default if sgd.learning_rate is None else sgd.learning_rate
    return OptimizerSettings(kind="sgd", learning_rate=rate, momentum=sgd.momentum)


def _schedule(train: Train) -> ScheduleSettings:
    kind = train.schedule.chosen
    chosen = train.schedule.value
    if not isinstance(chosen, Decay):
        return ScheduleSettings(warmup_steps=chosen.warmup_steps)
    horizon = chosen.horizon_steps or train.max_steps
    if horizon is None:
        raise SpecError(
            f"spec.train.schedule.{kind}.horizonSteps: expected a number of steps, since"
            " train.maxSteps is not set either; set one of them"
        )
    return ScheduleSettings(
        kind=cast("Literal['cosine', 'linear']", kind),
        warmup_steps=chosen.warmup_steps,
        horizon_steps=horizon,
        minimum_ratio=chosen.minimum_ratio,
    )
