"""PPO from the command line: its sample, a critic that starts from a reward model, an adapter that is handed on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
FEW = ("--set", "train.maxSteps=2", "--set", "train.schedule={constant: {}}")

ADAPTER_THEN_MORE = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: small-adapter}
spec:
  model: {uri: "rollout://tiny-adder", lora: {rank: 4, alpha: 8}}
  train:
    algorithm: {ppo: {promptsPerStep: 16, critic: {warmupSteps: 1}}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    optimizer: {adamw: {learningRate: "0.01"}}
    maxSteps: 2
---
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: after-adapter}
spec:
  model: {fromRun: {name: small-adapter}}
  train:
    algorithm: {grpo: {promptsPerStep: 4, groupSize: 4}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    maxSteps: 2
"""


def rollout(folder: Path, *command: str) -> str:
    """Standard output of ``rollout COMMAND``; fails with what it said when it fails."""
    home = {"ROLLOUT_HOME": str(folder)}
    done = run_rollout(*command, folder=folder, environment=home, seconds_max=1700)
    assert done.returncode == 0, done.stderr
    return done.stdout


def metrics_of(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "policy_loss" in line]


def test_the_sample_runs_and_shows_its_critic(tmp_path) -> None:
    sample = str(SAMPLES / "addition-sft-ppo.yaml")
    few = ("--set", "train.maxSteps=6", "--set", "evaluations=[]", *FEW[2:])
    rollout(tmp_path, "train", "ppo", "-c", sample, *few)
    steps = metrics_of(tmp_path / "addition-ppo-1")
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    wanted = {"value_loss", "explained_variance", "value_clip_fraction", "return_mean"}
    wanted |= {"kl_per_answer", "kl_coefficient", "critic_gradient_norm"}
    assert all(wanted <= set(step) for step in steps)
    assert [step["gradient_norm"] > 0 for step in steps] == [False] * 5 + [True]  # a warm-up of 5
    anchor = json.loads((tmp_path / "addition-ppo-1" / "snapshots" / "Latest.json").read_text())
    assert anchor["step"] == 6


@pytest.mark.slow
def test_a_critic_starts_from_the_reward_model_of_the_same_pipeline(tmp_path) -> None:
    sample = str(SAMPLES / "addition-sft-rm-ppo.yaml")
    few = ("--set", "train.maxSteps=6", "--set", "evaluations=[]", *FEW[2:])
    rollout(tmp_path, "train", "ppo", "-c", sample, *few)
    run = tmp_path / "instructed-ppo-1"
    assert (run / "models" / "critic" / "model.safetensors").is_file()
    first = metrics_of(run)[0]
    assert first["num_updates"] == 4
    assert abs(first["value_mean"]) > 1e-3  # a new head's values are smaller
    assert {"instructed-rm", "exact-match"} <= set(first["reward_by_source"])


@pytest.mark.slow
def test_what_an_adapter_learned_is_handed_on_as_dense_weights(tmp_path) -> None:
    manifest = tmp_path / "adapter.yaml"
    manifest.write_text(ADAPTER_THEN_MORE)
    rollout(tmp_path / "runs", "run", "-f", str(manifest))
    first, second = (tmp_path / "runs" / name for name in ("small-adapter-1", "after-adapter-1"))
    assert (first / "adapter" / "adapter_model.safetensors").is_file()
    with safe_open(next(second.glob("model*/model.safetensors")), framework="pt") as weights:
        assert not any("lora" in name for name in weights.keys())  # noqa: SIM118 - not a mapping
    assert len(metrics_of(second)) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("sample", "run", "reached"),
    [
        ("addition-sft-ppo", "addition-ppo-1", 0.9),
        ("addition-sft-rm-ppo", "instructed-ppo-1", 0.7),
        ("addition-sft-rm-grpo", "preferred-grpo-1", 0.7),
    ],
)
def test_a_sample_learns_to_carry(tmp_path, sample, run, reached) -> None:
    rollout(tmp_path, "run", "-f", str(SAMPLES / f"{sample}.yaml"))
    report = json.loads((tmp_path / run / "report.json").read_text())
    found = sorted(
        (row["step"], row["value"], row["low"])
        for row in report["evaluations"]
        if row["metric"] == "accuracy"
    )
    assert found[0][1] < 0.5
    assert found[-1][2] >= reached
