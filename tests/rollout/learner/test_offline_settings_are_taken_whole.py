"""Algorithms that learn from rows: every number of the manifest reaches the learner, and none is invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.ipo import IpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.preference.orpo import OrpoSettings
from rollout.algorithms.preference.reward_model import RewardModelSettings
from rollout.algorithms.preference.simpo import SimpoSettings
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.config.sft import SftSettings
from rollout.learner.objectives.registry import build_settings
from rollout_api.worker import WorkerConfig

DIGEST = "blake3:" + "0" * 64


def build(algorithm: dict[str, Any], **train: Any) -> Any:
    here = str(Path.cwd())
    data = {"jsonl": {"uri": "x.jsonl"}}
    config = WorkerConfig.model_validate(
        {
            "run": {"name": "r", "uid": "u"},
            "specDigest": DIGEST,
            "spec": {
                "seed": 9,
                "model": {"uri": "rollout://tiny-qwen2"},
                "train": {"algorithm": algorithm, "data": data, **train},
            },
            "resolved": {
                "modelPath": here,
                "modelDigest": DIGEST,
                "dtype": "Float32",
                "promptTokensMax": 16,
            },
            "layout": {
                "runDir": here,
                "coordinatorUrl": "http://127.0.0.1:1",
                "tokenFile": here,
                "objectsDir": here,
                "ledgerPath": here,
            },
        }
    )
    return build_settings(config)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (
            {"sft": {"labelSmoothing": "0.1"}},
            SftSettings(loss="CompletionOnly", packing=True, max_length=1024, label_smoothing=0.1),
        ),
        (
            {
                "dpo": {
                    "beta": "0.2",
                    "loss": "Robust",
                    "labelSmoothing": "0.1",
                    "sftCoefficient": 1,
                }
            },
            PairSettings(
                loss=DpoSettings(beta=0.2, form="Robust", label_smoothing=0.1, sft_coefficient=1.0),
                max_length=1024,
            ),
        ),
        (
            {"ipo": {"beta": "0.5", "aggregation": "SequenceSum", "maxLength": 9}},
            PairSettings(loss=IpoSettings(beta=0.5, aggregation="SequenceSum"), max_length=9),
        ),
        (
            {"orpo": {"beta": "0.3"}},
            PairSettings(loss=OrpoSettings(beta=0.3), max_length=1024),
        ),
        (
            {"simpo": {"beta": "3", "gamma": "0.5"}},
            PairSettings(loss=SimpoSettings(beta=3.0, gamma=0.5), max_length=1024),
        ),
        (
            {"kto": {"desirableWeight": "1.2", "undesirableWeight": "2", "klBatch": "MicroBatch"}},
            LabelSettings(
                loss=KtoSettings(beta=0.1, desirable_weight=1.2, undesirable_weight=2.0),
                max_length=1024,
                per_micro_batch=True,
            ),
        ),
        (
            {"rm": {"centeringCoefficient": "0.01", "maxLength": 7}},
            RewardSettings(
                loss=RewardModelSettings(centering_coefficient=0.01), max_length=7, seed=9
            ),
        ),
    ],
)
def test_every_number_of_an_offline_algorithm_is_taken(algorithm, expected) -> None:
    assert build(algorithm).algorithm == expected
