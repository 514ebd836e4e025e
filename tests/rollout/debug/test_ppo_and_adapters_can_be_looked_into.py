"""Runs of PPO and of an adapter, from their manifest to a replay that meets every digest."""

import pytest
from debug_kit import GRPO, build_config, record

from rollout.debug.one_batch import inspect_batch
from rollout.debug.replay import replay_recorded

PPO = GRPO | {
    "algorithm": {
        "ppo": {
            "promptsPerStep": 4,
            "samplesPerPrompt": 2,
            "epochs": 2,
            "miniBatches": 2,
            "truncation": "Bootstrap",
            "klController": {"adaptive": {"target": "0.1", "horizon": 100}},
            "critic": {"warmupSteps": 1, "optimizer": {"adamw": {"learningRate": "1e-2"}}},
        }
    }
}


@pytest.fixture(scope="module")
def run_of(tiny_model, tmp_path_factory):
    """A recorded run of five steps with anchors at 2, 4 and 5."""

    def make(name, **model):
        folder = tmp_path_factory.mktemp(name) / "tiny-1"
        train = GRPO if name == "adapter" else PPO
        config = build_config(folder, tiny_model, train)
        spec = config.spec.model_copy(update={"model": config.spec.model.model_copy(update=model)})
        record(config.model_copy(update={"spec": spec}))
        return folder

    return make


@pytest.fixture(scope="module")
def ppo_run(run_of):
    return run_of("ppo")


@pytest.mark.parametrize("after", [0, 4])
def test_every_step_of_ppo_meets_its_digest(ppo_run, after):
    lines = list(replay_recorded(ppo_run, after=after))
    assert [line["step"] for line in lines] == list(range(after, 6))
    assert all(line["equal"] for line in lines)


def test_a_batch_of_ppo_shows_its_advantages(ppo_run):
    found = inspect_batch(ppo_run, 3)
    assert found["state_equal"]
    assert found["not_finite"] == []
    assert len(found["samples"]) == 8
    assert any(sample["advantage"] for sample in found["samples"])
    assert {"value_loss", "kl_coefficient", "value_mean"} <= set(found["metrics"])


def test_every_step_of_an_adapter_meets_its_digest(run_of):
    from rollout_api.v1alpha1.model import Lora

    folder = run_of("adapter", lora=Lora(rank=4, alpha=8))
    assert all(line["equal"] for line in replay_recorded(folder, after=2))
    shown = inspect_batch(folder, 2)
    assert all("lora_" in line["name"] for line in shown["parameters"])
    assert (folder / "adapter" / "adapter_config.json").is_file()
