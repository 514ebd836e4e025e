"""``rollout train``: one command for each algorithm of the API, for manifests that end in it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.cli.starting.training import ALGORITHMS
from rollout.errors import SpecError
from rollout_api.v1alpha1.training.algorithms import Algorithm

SFT = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: first}
spec:
  model: {uri: rollout://tiny-qwen2}
  train: {algorithm: {sft: {}}, data: {jsonl: {uri: rows.jsonl}}, maxSteps: 1}
"""
DPO = (
    SFT.replace("first", "second")
    .replace("sft", "dpo")
    .replace("{uri: rollout://tiny-qwen2}", "{fromRun: {name: first}}")
)


def train(algorithm, tmp_path, text):
    path = tmp_path / "runs.yaml"
    path.write_text(text)
    return CliRunner().invoke(app, ["train", algorithm, "--config", str(path), "--dry-run"])


def test_every_algorithm_of_the_api_has_a_command() -> None:
    assert set(ALGORITHMS) == {name for name in Algorithm.model_fields if name != "python"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_manifest_of_another_algorithm_is_refused(algorithm, tmp_path) -> None:
    other = SFT.replace("sft", "grpo" if algorithm == "sft" else "sft")
    done = train(algorithm, tmp_path, other)
    assert isinstance(done.exception, SpecError)
    assert f"train {algorithm} needs spec.train.algorithm.{algorithm}" in str(done.exception)


def test_runs_that_prepare_the_last_one_may_be_of_another(tmp_path) -> None:
    wrong = train("sft", tmp_path, f"{SFT}---{DPO}")
    assert "train sft needs spec.train.algorithm.sft, found dpo" in str(wrong.exception)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}')
    right = train("dpo", tmp_path, f"{SFT}---{DPO}")
    assert "needs spec.train.algorithm" not in str(right.exception)
