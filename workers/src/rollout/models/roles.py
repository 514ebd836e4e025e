"""The models of a run beside the one it trains, by role: a reference, a critic, a teacher, models that give reward. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from rollout_api.checks.environment.rewards import reward_name
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.run import RolloutRunSpec

REFERENCE = "reference"
CRITIC = "critic"
TEACHER = "teacher"
INITIAL = "initial"
"""The run's own model as it was before training: no further one, and named where others are looked up by role."""
TEACHER_FIELD = "spec.train.algorithm.distill.teacher"


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherModel:
    """Where a further model comes from; ``field`` is its place in the manifest."""

    role: str
    field: str
    source: ModelSource


def reward_role(name: str) -> str:
    """The role of the model behind a reward of this name."""
    return f"reward/{name}"


def judge_role(name: str) -> str:
    """The role of the model that judges for a reward of this name."""
    return f"judge/{name}"


def further_models(spec: RolloutRunSpec) -> tuple[FurtherModel, ...]:
    """Every model that must be there beside ``spec.model``; rewards have their names by now."""
    train = spec.train
    if train is None:
        return ()
    found = []
    if train.reference is not None:
        field = "spec.train.reference"
        found.append(FurtherModel(role=REFERENCE, field=field, source=train.reference))
    chosen = train.algorithm.chosen
    for role, path in train.algorithm.traits.models.items():
        source = reduce(getattr, path, train.algorithm.value)
        if source is not None:
            field = ".".join(("spec.train.algorithm", chosen, *path))
            found.append(FurtherModel(role=role, field=field, source=source))
    for index, reward in enumerate(train.rewards):
        if reward.model is not None:
            field = f"spec.train.rewards[{index}].model"
            role = reward_role(reward.name or f"reward-{index}")
            found.append(FurtherModel(role=role, field=field, source=reward.model))
        if reward.judge is not None and reward.judge.model is not None:
            field = f"spec.train.rewards[{index}].judge.model"
            role = judge_role(reward_name(reward))
            found.append(FurtherModel(role=role, field=field, source=reward.judge.model))
    return tuple(found)
