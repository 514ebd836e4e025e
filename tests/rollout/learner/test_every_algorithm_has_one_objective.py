"""The algorithms of the API and those of the learner are the same, and say the same of a reference."""

from __future__ import annotations

from typing import Any

import pytest

from rollout.learner.objectives.registry import OBJECTIVES, build_settings, objective_of
from rollout_api.presets import fill
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.algorithms import TRAITS
from rollout_api.worker import WorkerConfig

TEACHER = {"distill": {"teacher": {"uri": "rollout://tiny-adder"}}}
ALGORITHMS = [
    *({name: TEACHER.get(name, {})} for name in TRAITS),
    {"grpo": {"klCoefficient": "0.1"}},
    {"ppo": {"klCoefficient": 0}},
]
DIGEST = "blake3:" + "0" * 64


def config_of(algorithm: dict[str, Any]) -> WorkerConfig:
    train: dict[str, Any] = {"algorithm": algorithm, "maxSteps": 2}
    spec = RolloutRunSpec.model_validate({"model": {"uri": "rollout://tiny-adder"}, "train": train})
    folder = "/nowhere"
    return WorkerConfig.model_validate(
        {
            "run": {"name": "r", "uid": "u"},
            "specDigest": DIGEST,
            "spec": fill(spec).model_dump(mode="json", exclude_none=True),
            "resolved": {
                "modelPath": folder,
                "modelDigest": DIGEST,
                "dtype": "Float32",
                "promptTokensMax": 16,
            },
            "layout": {
                "runDir": folder,
                "coordinatorUrl": "http://127.0.0.1:1",
                "tokenFile": folder,
                "objectsDir": folder,
                "ledgerPath": folder,
            },
        }
    )


def test_every_algorithm_of_the_api_has_one_objective() -> None:
    assert sorted(one.name for one in OBJECTIVES) == sorted(TRAITS)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_settings_lead_back_to_their_algorithm_and_load_the_reference_it_names(algorithm) -> None:
    config = config_of(algorithm)
    assert config.spec.train is not None
    said, settings = config.spec.train.algorithm, build_settings(config)
    objective = objective_of(settings)
    assert objective.name == said.chosen
    assert objective.needs_reference(settings.algorithm) == said.uses_reference
    assert settings.optimizer.learning_rate == float(said.traits.tiny_learning_rate)
