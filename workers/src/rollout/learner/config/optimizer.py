"""How parameters move: optimizer and learning rate over steps, taken once from the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from rollout.errors import SpecError
from rollout_api.v1alpha1.training.optimizer import Decay, Optimizer
from rollout_api.v1alpha1.training.train import Train


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


def default_rate(train: Train) -> float:
    """The learning rate where the manifest says none."""
    return float(train.algorithm.traits.learning_rate)


def build_optimizer_settings(chosen: Optimizer, default: float) -> OptimizerSettings:
    """Settings from the manifest; ``default`` is the learning rate that it leaves out."""
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


def build_schedule(train: Train) -> ScheduleSettings:
    """Settings from the manifest. Raises SpecError for a decay without an end."""
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
