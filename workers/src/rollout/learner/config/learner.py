"""What the learner needs to know, taken once from the worker configuration: numbers, no models of the API.

``learner.objectives.registry`` builds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout.learner.config.distill import DistillSettings
from rollout.learner.config.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
)
from rollout.learner.config.policy import PolicySettings
from rollout.learner.config.ppo import PpoSettings
from rollout.learner.config.preference import (
    PreferenceSettings,
)
from rollout.learner.config.sft import SftSettings
from rollout.learner.model.adapter import LoraSettings

DtypeName = Literal["Float32", "BFloat16"]


AlgorithmSettings = (
    PolicySettings | PpoSettings | DistillSettings | SftSettings | PreferenceSettings
)
"""One member for each of ``learner.objectives.registry.OBJECTIVES``."""


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
