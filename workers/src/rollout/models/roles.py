"""The models of a run beside the one it trains, by role: a reference, a critic, a teacher, models that give reward. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.run import RolloutRunSpec

REFERENCE = "reference"
CRITIC = "critic"
TEACHER = "teacher"
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


def further_models(spec: RolloutRunSpec) -> tuple[FurtherModel, ...]:
    """Every model that must be there beside ``spec.model``; rewards have their names by now."""
    train = spec.train
    if train is None:
        return ()
    found = []
    if train.reference is not None:
        field = "spec.train.reference"
        found.append(FurtherModel(role=REFERENCE, field=field, source=train.reference))
    ppo = train.algorithm.ppo
    if ppo is not None and ppo.critic.model is not None:
        field = "spec.train.algorithm.ppo.critic.model"
        found.append(FurtherModel(role=CRITIC, field=field, source=ppo.critic.model))
    distill = train.algorithm.distill
    if distill is not None:
        found.append(FurtherModel(role=TEACHER, field=TEACHER_FIELD, source=distill.teacher))
    for index, reward in enumerate(train.rewards):
        if reward.model is not None:
            field = f"spec.train.rewards[{index}].model"
            role = reward_role(reward.name or f"reward-{index}")
            found.append(FurtherModel(role=role, field=field, source=reward.model))
    return tuple(found)


def needed_runs(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the runs whose results a manifest starts from, the policy's first; each once."""
    spec = document.get("spec") or {}
    train = spec.get("train") or {}
    sources = [spec.get("model"), train.get("reference")]
    algorithm = train.get("algorithm") or {}
    sources.append(((algorithm.get("ppo") or {}).get("critic") or {}).get("model"))
    sources.append((algorithm.get("distill") or {}).get("teacher"))
    sources += [(reward or {}).get("model") for reward in train.get("rewards") or ()]
    names = [((source or {}).get("fromRun") or {}).get("name") for source in sources]
    return tuple(dict.fromkeys(name for name in names if name))
