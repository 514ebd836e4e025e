"""How parameters move: optimizer and learning rate over steps, taken once from the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from rollout.errors import SpecError
from rollout_api.v1alpha1.training.optimizer import Decay, Optimizer
from rollout_api.v1alpha1.training.train import Train


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """``adamw`` reads the betas, epsilon and decay; ``sgd`` reads momentum."""

    kind: Literal["adamw", "sgd"]
    """Which one."""
    learning_rate: float
    """The peak, >= 0; the schedule scales it."""
    beta1: float = 0.9
    """Decay of the first moment, in [0, 1)."""
    beta2: float = 0.999
    """Decay of the second moment, in [0, 1)."""
    epsilon: float = 1e-8
    """Added to the root of the second moment, > 0."""
    weight_decay: float = 0.0
    """Decoupled: times the learning rate, off matrices only (no biases, no norms); >= 0."""
    momentum: float = 0.0
    """In [0, 1); 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """The learning rate over steps."""

    kind: Literal["constant", "cosine", "linear"] = "constant"
    """What follows the warm-up."""
    warmup_steps: int = 0
    """Steps over which the rate rises in a straight line from 0 to its peak; 0: it begins there."""
    horizon_steps: int = 1
    """The step at which a decay has ended, warm-up included; >= 1."""
    minimum_ratio: float = 0.0
    """Where a decay ends, as a share of the peak, in [0, 1]."""


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
