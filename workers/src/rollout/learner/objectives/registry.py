"""The algorithms a learner knows: where a new one joins, and how a run's settings and cuts are found.

Everything that the manifest may ask for and this learner cannot do is refused here, by field, before
anything is loaded: a setting is never silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rollout.errors import SpecError
from rollout.learner.config.learner import LearnerSettings
from rollout.learner.config.optimizer import build_optimizer_settings, build_schedule, default_rate
from rollout.learner.config.preference import PairSettings
from rollout.learner.context import LearnerContext
from rollout.learner.forward.packed_rows import is_packed
from rollout.learner.model.adapter import build_lora
from rollout.learner.objectives.distill import DISTILL
from rollout.learner.objectives.objective import Objective
from rollout.learner.objectives.plan import PlanRules
from rollout.learner.objectives.policy import GRPO
from rollout.learner.objectives.ppo import PPO
from rollout.learner.objectives.preference.kto import KTO
from rollout.learner.objectives.preference.pairs import DPO, IPO, ORPO, SIMPO
from rollout.learner.objectives.preference.reward import RM
from rollout.learner.objectives.sft import SFT
from rollout_api.v1alpha1.training.train import Train
from rollout_api.worker import WorkerConfig

OBJECTIVES = (SFT, RM, DPO, IPO, KTO, ORPO, SIMPO, PPO, GRPO, DISTILL)
"""Every algorithm; what is not here is refused by name."""
_BY_NAME: Mapping[str, Objective] = {one.name: one for one in OBJECTIVES}
_BY_SETTINGS: Mapping[type, Objective] = {one.settings: one for one in OBJECTIVES}


def objective_of(settings: LearnerSettings) -> Objective:
    """The algorithm that these settings are of."""
    found = settings.algorithm
    return _BY_SETTINGS[type(found.loss if isinstance(found, PairSettings) else found)]


def build_settings(config: WorkerConfig) -> LearnerSettings:
    """Settings of a training run. Raises SpecError for what this learner cannot do."""
    spec, train = config.spec, config.spec.train
    if train is None:
        raise SpecError("spec.train: expected a training run; infer and evaluate have no learner")
    snapshots = spec.snapshots
    return LearnerSettings(
        algorithm=_objective(train).build_settings(config, train),
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
        optimizer_offload=spec.learner.optimizer_offload,
    )


def _objective(train: Train) -> Objective:
    name = train.algorithm.chosen
    if name not in _BY_NAME:
        raise SpecError(
            f"spec.train.algorithm.{name}: this learner cannot do that yet; there are"
            f" {', '.join(_BY_NAME)}"
        )
    return _BY_NAME[name]


def cutting_rules(parts: LearnerContext) -> PlanRules:
    """How steps are cut: a model that shares nothing within a row has every item in a row of its own."""
    settings = parts.trainer.settings
    objective = objective_of(settings)
    rules = objective.plan_rules(settings, parts.parallel.num_shares)
    decoder = parts.trainer.policy.model.get_decoder()  # pyrefly: ignore - transformers' models and ours have it
    if is_packed(decoder) or objective.compares_rows:
        return rules
    return replace(rules, tokens_max=0)
