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
    """Everything that decides what a step does."""

    algorithm: AlgorithmSettings
    """The numbers of the loss, and of what is learned from."""
    optimizer: OptimizerSettings
    """The policy's; a critic has its own in ``PpoSettings.critic``."""
    schedule: ScheduleSettings
    """Its learning rate over steps."""
    max_grad_norm: float
    """Of the whole gradient, all ranks; 0 does not clip."""
    micro_batch_tokens: int
    """Tokens, padding included, of one forward and backward pass of one rank; memory and speed, not the result."""
    activation_checkpointing: bool
    """Activations are computed again in the backward pass: less memory, a third slower."""
    dtype: DtypeName
    """Of the policy's parameters in the forward pass."""
    exact: bool
    """``numerics.mode`` is ``Exact``: the same steps give the same bits."""
    hash_every_steps: int
    """Steps between hashes of the whole state, >= 1."""
    anchor_every_steps: int
    """Steps between two anchors, >= 1: the lesser of ``snapshots.everySteps`` and ``maxReplaySteps``."""
    seed: int
    """The run's; what is drawn in the learner (new heads, adapters) comes from it."""
    spec_digest: str
    """blake3 of the canonical resolved spec; the root of the hash chain."""
    lora: LoraSettings | None = None
    """The adapter that is trained; None: all parameters."""
    optimizer_offload: bool = False
    """Optimizer states lie in host memory between steps, a critic's too; changes no number."""

    @property
    def num_epochs(self) -> int:
        """Passes over one step's batch."""
        return getattr(self.algorithm, "epochs", 1)
