"""How parameters move: optimizers and learning-rate schedules."""

from typing import ClassVar

from pydantic import Field

from rollout_api.base import ApiModel, OneOf, Real, Rule, filled

_HORIZON = Rule(
    rule="has(self.horizonSteps) == has(oldSelf.horizonSteps)"
    " && (!has(self.horizonSteps) || self.horizonSteps == oldSelf.horizonSteps)",
    message="horizonSteps is immutable: maxSteps may grow without bending the schedule",
    field="horizonSteps",
)


class AdamW(ApiModel):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    learning_rate: Real | None = Field(default=None, ge=0, le=10)
    """Peak learning rate. Unset: by algorithm (sft 2e-5, rm 1e-4, others 1e-6); for the models of
    `rollout://tiny-*` sft 3e-3, grpo, ppo and distill 3e-4."""
    beta1: Real = filled(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Real = filled(0.999, ge=0, lt=1)
    """Decay of the second moment."""
    epsilon: Real = filled(1e-8, gt=0, le=1)
    """Added to the denominator."""
    weight_decay: Real = filled(0.0, ge=0, le=10)
    """Decoupled decay per step, times the learning rate; 0 is off, as is usual in post-training."""


class Sgd(ApiModel):
    """Stochastic gradient descent, with momentum where it is set."""

    learning_rate: Real | None = Field(default=None, ge=0, le=1000)
    """Peak learning rate. Unset: by algorithm, as for adamw."""
    momentum: Real = filled(0.0, ge=0, lt=1)
    """Momentum; 0 keeps no optimizer state."""


class Optimizer(OneOf):
    """The optimizer of the policy."""

    adamw: AdamW | None = None
    """Adam with decoupled weight decay; the default."""
    sgd: Sgd | None = None
    """Plain gradient descent, for comparisons and tests."""


class Constant(ApiModel):
    """The peak learning rate from the end of the warm-up on."""

    warmup_steps: int = filled(0, ge=0, le=10_000_000)
    """Steps of linear growth from 0 to the peak; 0 starts at the peak."""


class Decay(ApiModel):
    """A learning rate that falls to `minimumRatio` of the peak at `horizonSteps`."""

    rules: ClassVar[tuple[Rule, ...]] = (_HORIZON,)

    warmup_steps: int = filled(0, ge=0, le=10_000_000)
    """Steps of linear growth from 0 to the peak; 0 starts at the peak."""
    horizon_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Step at which the decay ends; immutable. Unset: `train.maxSteps` when the run starts."""
    minimum_ratio: Real = filled(0.0, ge=0, le=1)
    """Share of the peak that remains at and after the horizon."""


class Schedule(OneOf):
    """The learning rate over steps."""

    constant: Constant | None = None
    """No decay; the default."""
    cosine: Decay | None = None
    """Half a cosine from the peak to the minimum."""
    linear: Decay | None = None
    """A straight line from the peak to the minimum."""
