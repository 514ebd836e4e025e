"""Distillation from the command line: its sample for a few steps, and what it teaches without a reward."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "addition-distill.yaml"
FEW = ("--set", "train.maxSteps=2", "--set", "train.schedule={constant: {}}")

BESIDE_REWARDS = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: both}
spec:
  model: {uri: "rollout://tiny-adder?steps=0"}
  train:
    algorithm:
      distill:
        teacher: {uri: "rollout://tiny-adder?steps=20"}
        promptsPerStep: 8
        samplesPerPrompt: 2
        miniBatches: 2
        rewardCoefficient: "0.5"
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: length}}]
    maxSteps: 2
"""

STRANGERS = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: stranger}
spec:
  model: {uri: "rollout://tiny-adder?steps=0"}
  train:
    algorithm: {distill: {teacher: {uri: "rollout://tiny-qwen2"}}}
    environment: {builtin: {name: arithmetic}}
    maxSteps: 2
"""


def rollout(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    home = {"ROLLOUT_HOME": str(folder)}
    return run_rollout(*command, folder=folder, environment=home, seconds_max=1700)


@pytest.mark.slow
def test_the_sample_runs_without_a_reward(tmp_path) -> None:
    """Quick: learner/test_a_teacher_teaches_what_the_policy_samples.py; that it starts: a dry run of `train distill`."""
    done = rollout(tmp_path, "train", "distill", "-c", str(SAMPLE), *FEW, "--set", "evaluations=[]")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "taught-pupil-1"
    assert (run / "models" / "teacher" / "model.safetensors").is_file()
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "policy_loss" in line]
    assert [step["step"] for step in steps] == [1, 2]
    assert all("teacher_kl" in step and "reward" not in step for step in steps)
    assert "No learning signal" not in (run / "report.json").read_text()


@pytest.mark.slow
def test_rewards_may_stand_beside_the_teacher(tmp_path) -> None:
    manifest = tmp_path / "both.yaml"
    manifest.write_text(BESIDE_REWARDS)
    done = rollout(tmp_path, "run", "-f", str(manifest))
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (tmp_path / "both-1" / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "policy_loss" in line]
    assert [(step["num_updates"], step["num_sequences"]) for step in steps] == [(2, 16)] * 2
    assert all(step["gradient_norm"] > 0 and step["teacher_kl"] > 0 for step in steps)
    assert all("length" in step["reward_by_source"] for step in steps)


def test_a_teacher_of_other_tokens_is_refused_before_anything_runs(tmp_path) -> None:
    manifest = tmp_path / "stranger.yaml"
    manifest.write_text(STRANGERS)
    done = rollout(tmp_path, "run", "-f", str(manifest))
    assert done.returncode != 0
    assert "spec.train.algorithm.distill.teacher" in done.stderr
    assert not (tmp_path / "stranger-1" / "ledger.db").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_sample_teaches_to_carry(tmp_path) -> None:
    done = rollout(tmp_path, "run", "-f", str(SAMPLE))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "taught-pupil-1" / "report.json").read_text())
    found = sorted(
        (row["step"], row["value"], row["low"])
        for row in report["evaluations"]
        if row["metric"] == "accuracy"
    )
    assert found[0][1] < 0.5
    assert found[-1][2] >= 0.9
