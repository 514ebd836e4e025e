"""From the manifest to the learner's numbers: nothing ignored, nothing invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout.algorithms.advantages.overlong import OverlongPenalty
from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.kl_controller import KlTarget
from rollout.algorithms.ppo import ReturnSettings, ValueSettings
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.clip import Clipped
from rollout.algorithms.surrogates.dppo import Dppo
from rollout.algorithms.surrogates.gmpo import Gmpo
from rollout.algorithms.surrogates.importance import Correction
from rollout.algorithms.surrogates.sapo import Sapo
from rollout.algorithms.surrogates.vespo import Vespo
from rollout.errors import SpecError
from rollout.learner.config.optimizer import OptimizerSettings, ScheduleSettings
from rollout.learner.config.policy import PolicySettings, RewardKl
from rollout.learner.config.ppo import CriticSettings, PpoSettings
from rollout.learner.config.sft import SftSettings
from rollout.learner.model.adapter import LoraSettings
from rollout.learner.objectives.registry import build_settings
from rollout.weights.lora import serves_adapter
from rollout_api.worker import WorkerConfig

DIGEST = "blake3:" + "0" * 64


def config(train: dict[str, Any], engine: str = "embedded", **spec: Any) -> WorkerConfig:
    here = str(Path.cwd())
    return WorkerConfig.model_validate(
        {
            "run": {"name": "r", "uid": "u"},
            "specDigest": DIGEST,
            "spec": {
                "model": {"uri": "rollout://tiny-qwen2", **spec.pop("model", {})},
                "train": {"environment": {"builtin": {"name": "arithmetic"}}, **train},
                **spec,
            },
            "resolved": {
                "modelPath": here,
                "modelDigest": DIGEST,
                "dtype": "Float32",
                "promptTokensMax": 16,
                "engine": engine,
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


def grpo(**fields: Any) -> dict[str, Any]:
    return {"algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 4, **fields}}}


def test_grpo_takes_every_number_of_the_manifest() -> None:
    train = grpo(
        clipLow="0.1",
        clipHigh="0.28",
        aggregation="FixedLength",
        advantageScale="None",
        klCoefficient="0.04",
        klEstimator="K2",
        entropyCoefficient="0.01",
        epochs=2,
        miniBatches=4,
    )
    train |= {
        "sampling": {"temperature": "0.7", "maxNewTokens": 12},
        "optimizer": {"adamw": {"learningRate": "1e-3", "beta2": "0.95", "weightDecay": "0.1"}},
        "schedule": {"cosine": {"warmupSteps": 5, "horizonSteps": 50, "minimumRatio": "0.1"}},
        "maxGradNorm": "0.5",
        "microBatchTokens": 64,
    }
    found = build_settings(config(train, seed=9, numerics={"mode": "Fast", "hashEverySteps": 4}))
    assert found.algorithm == PolicySettings(
        loss=GrpoSettings(
            surrogate=Clipped(low=0.1, high=0.28),
            aggregation="FixedLength",
            kl_coefficient=0.04,
            kl_estimator="K2",
            entropy_coefficient=0.01,
        ),
        advantage_scale="None",
        advantage_epsilon=1e-6,
        old_logprobs="Learner",
        temperature=0.7,
        width=12,
        epochs=2,
        mini_batches=4,
    )
    assert found.optimizer == OptimizerSettings(
        kind="adamw", learning_rate=1e-3, beta2=0.95, weight_decay=0.1
    )
    assert found.schedule == ScheduleSettings(
        kind="cosine", warmup_steps=5, horizon_steps=50, minimum_ratio=0.1
    )
    assert (found.max_grad_norm, found.micro_batch_tokens, found.seed) == (0.5, 64, 9)
    assert (found.exact, found.hash_every_steps, found.num_epochs) == (False, 4, 2)


def test_sft_takes_its_own_defaults() -> None:
    train = {
        "algorithm": {"sft": {"packing": False, "maxLength": 77, "loss": "Full"}},
        "optimizer": {"sgd": {"momentum": "0.9"}},
        "data": {"jsonl": {"uri": "x.jsonl"}},
        "environment": None,
    }
    found = build_settings(config(train))
    assert found.algorithm == SftSettings(loss="Full", packing=False, max_length=77)
    assert found.optimizer == OptimizerSettings(kind="sgd", learning_rate=2e-5, momentum=0.9)
    assert found.schedule == ScheduleSettings()


@pytest.mark.parametrize(
    ("train", "engine", "cap"),
    [
        ({}, "embedded", None),
        ({}, "vllm", 2.0),
        ({"maxStaleness": 1}, "embedded", 2.0),
        ({"maxStaleness": 1, "oldLogprobs": "Actor"}, "embedded", None),
        ({"importanceSampling": {"none": {}}}, "vllm", None),
        ({"importanceSampling": {"tokenTruncated": {"cap": "5"}}}, "embedded", 5.0),
    ],
)
def test_the_correction_is_on_exactly_where_it_is_needed(train, engine, cap) -> None:
    found = build_settings(config(grpo() | train, engine)).algorithm
    assert isinstance(found, PolicySettings)
    assert found.loss.correction == (None if cap is None else Correction(high=cap))


@pytest.mark.parametrize(
    ("said", "correction"),
    [
        ({"sequenceTruncated": {"cap": "5"}}, Correction(level="Sequence", high=5.0)),
        ({"tokenMasked": {}}, Correction(low=0.5, high=5.0, masks=True)),
        ({"sequenceMasked": {}}, Correction(level="Sequence", low=0, high=3.0, masks=True)),
    ],
)
def test_every_correction_is_taken_with_its_bounds(said, correction) -> None:
    found = build_settings(config(grpo() | {"importanceSampling": said})).algorithm
    assert isinstance(found, PolicySettings)
    assert found.loss.correction == correction


@pytest.mark.parametrize(
    ("said", "surrogate"),
    [
        ({"clipped": {}}, Clipped()),
        ({"cispo": {"absolute": {"ratioMax": "4"}}}, Cispo(ratio_min=0.0, ratio_max=4.0)),
        (
            {"cispo": {"relative": {"clipLow": "0.25", "clipHigh": "1"}}},
            Cispo(ratio_min=0.75, ratio_max=2.0),
        ),
        (
            {"sapo": {"temperaturePositive": "2", "temperatureNegative": "3"}},
            Sapo(temperature_positive=2.0, temperature_negative=3.0),
        ),
        (
            {"gmpo": {"logClipLow": "0.1", "logClipHigh": "0.3"}},
            Gmpo(log_clip_low=0.1, log_clip_high=0.3),
        ),
        (
            {"vespo": {"kPositive": "1", "lambdaNegative": "4"}},
            Vespo(k_positive=1.0, rate_negative=4.0),
        ),
        (
            {"dppo": {"maskLow": "0.1", "maskHigh": "0.3", "driftCoefficient": "0"}},
            Dppo(mask_low=0.1, mask_high=0.3, drift_coefficient=0.0),
        ),
    ],
)
def test_every_objective_is_taken_with_its_numbers(said, surrogate) -> None:
    found = build_settings(config(grpo(surrogate=said))).algorithm
    assert isinstance(found, PolicySettings)
    assert found.loss.surrogate == surrogate


def test_the_penalty_and_the_price_of_the_kl_are_taken() -> None:
    train = grpo(klCoefficient="0.1", klPlacement="TokenReward", klEstimator="K1", ratio="Sequence")
    train |= {
        "sampling": {"maxNewTokens": 20},
        "overlongPenalty": {"bufferTokens": 5, "penalty": "2"},
    }
    found = build_settings(config(train)).algorithm
    assert isinstance(found, PolicySettings)
    assert found.overlong == OverlongPenalty(limit=20, buffer=5, penalty=2.0)
    assert found.reward_kl == RewardKl(coefficient=0.1, estimator="K1", per_token=True)
    assert (found.loss.kl_coefficient, found.loss.ratio) == (0.0, "Sequence")


@pytest.mark.parametrize(
    ("train", "field"),
    [
        (grpo(klCoefficient="0.1", klPlacement="Reward", klEstimator="K3Plus"), "klEstimator"),
        (
            grpo() | {"sampling": {"maxNewTokens": 4}, "overlongPenalty": {"bufferTokens": 4}},
            "overlongPenalty.bufferTokens",
        ),
    ],
)
def test_what_would_mean_nothing_is_refused_by_field(train, field) -> None:
    with pytest.raises(SpecError, match=field):
        build_settings(config(train))


def test_anchors_come_often_enough_for_the_replay_bound() -> None:
    snapshots = {"everySteps": 100, "maxReplaySteps": 20}
    assert build_settings(config(grpo(), snapshots=snapshots)).anchor_every_steps == 20


def test_a_decay_takes_its_horizon_from_the_last_step() -> None:
    train = grpo() | {"schedule": {"linear": {}}, "maxSteps": 30}
    assert build_settings(config(train)).schedule.horizon_steps == 30
    with pytest.raises(SpecError, match="horizonSteps"):
        build_settings(config(grpo() | {"schedule": {"linear": {}}}))


@pytest.mark.parametrize(
    ("train", "spec", "field"),
    [
        (grpo(), {"model": {"lora": {"dropout": "0.1"}}}, "spec.model.lora.dropout"),
        (grpo(), {"model": {"lora": {"targets": ["Embedding"]}}}, "spec.model.lora.targets"),
        (grpo() | {"sampling": {"temperature": 0}}, {}, "spec.train.sampling.temperature"),
    ],
)
def test_what_this_learner_cannot_do_is_refused_by_field(train, spec, field) -> None:
    with pytest.raises(SpecError, match=field):
        build_settings(config(train, **spec))


def ppo(**fields: Any) -> dict[str, Any]:
    return {"algorithm": {"ppo": {"promptsPerStep": 4, **fields}}}


def test_ppo_takes_every_number_of_the_manifest() -> None:
    train = ppo(
        clipLow="0.1",
        clipHigh="0.3",
        dualClip="3",
        gamma="0.9",
        gaeLambda="0.8",
        whitenAdvantages=False,
        truncation="Bootstrap",
        aggregation="SequenceMean",
        klCoefficient="0.2",
        klEstimator="K2",
        klController={"adaptive": {"target": "3", "horizon": 500}},
        entropyCoefficient="0.01",
        epochs=3,
        miniBatches=2,
        critic={
            "optimizer": {"sgd": {"learningRate": "0.1", "momentum": "0.5"}},
            "maxGradNorm": "0.7",
            "warmupSteps": 4,
            "valueClip": "0.4",
            "valueCoefficient": "1",
        },
    )
    train |= {
        "sampling": {"temperature": "0.7", "maxNewTokens": 12},
        "overlongPenalty": {"bufferTokens": 3, "penalty": "0.5"},
    }
    found = build_settings(config(train)).algorithm
    assert found == PpoSettings(
        loss=GrpoSettings(
            surrogate=Clipped(low=0.1, high=0.3, dual=3.0),
            aggregation="SequenceMean",
            kl_estimator="K2",
            entropy_coefficient=0.01,
        ),
        returns=ReturnSettings(gamma=0.9, gae_lambda=0.8, reward_kl="K2"),
        value=ValueSettings(clip=0.4, coefficient=1.0, aggregation="SequenceMean"),
        critic=CriticSettings(
            optimizer=OptimizerSettings(kind="sgd", learning_rate=0.1, momentum=0.5),
            max_grad_norm=0.7,
            warmup_steps=4,
        ),
        old_logprobs="Learner",
        temperature=0.7,
        width=12,
        kl_coefficient=0.2,
        kl_target=KlTarget(kl=3.0, horizon=500),
        whitens=False,
        bootstraps=True,
        overlong=OverlongPenalty(limit=12, buffer=3, penalty=0.5),
        epochs=3,
        mini_batches=2,
    )


def test_ppos_kl_may_be_in_the_loss_and_its_critic_has_a_rate_of_its_own() -> None:
    settings = build_settings(config(ppo(klPlacement="Loss", klEstimator="K3")))
    found = settings.algorithm
    assert isinstance(found, PpoSettings)
    assert found.kl_in_loss
    assert found.kl_target is None
    assert (settings.optimizer.learning_rate, found.critic.optimizer.learning_rate) == (1e-6, 1e-5)


def test_ppo_samples_and_does_not_take_the_likeliest() -> None:
    with pytest.raises(SpecError, match=r"spec\.train\.sampling\.temperature"):
        build_settings(config(ppo() | {"sampling": {"temperature": 0}}))


def test_an_adapter_is_taken_whole() -> None:
    lora = {"rank": 4, "alpha": 8, "targets": ["Mlp"]}
    found = build_settings(config(grpo(), model={"lora": lora})).lora
    assert found == LoraSettings(rank=4, alpha=8, targets=("Mlp",))
    assert build_settings(config(grpo())).lora is None


def test_adapters_are_published_as_such_for_vllm_alone() -> None:
    lora = {"rank": 4, "alpha": 8}

    def served(engine, **changes) -> bool:
        given = config(grpo(), model={"lora": lora | changes}, actors={"engine": engine})
        return serves_adapter(given)

    assert served({"vllm": {}})
    assert not served({"embedded": {}})
    assert not served({"vllm": {}}, quantization="NF4")
