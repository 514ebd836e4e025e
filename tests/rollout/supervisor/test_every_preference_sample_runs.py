"""The preference samples, cut to two steps: each stage starts from what the one before produced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
LATER = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("kto", "ipo", "orpo", "simpo", "rm")
]
"""What they learn: learner/test_preferences_are_learned.py; how they are started: test_every_algorithm_trains_from_either_format.py."""


def run(name: str, folder: Path, *words: str) -> dict:
    """The last run's result."""
    few = ("--set", "train.maxSteps=2", "--set", "train.schedule={constant: {}}")
    command = ["run", "-f", str(SAMPLES / f"{name}.yaml"), *few, *words]
    done = run_rollout(*command, folder=folder, environment={"ROLLOUT_HOME": str(folder)})
    assert done.returncode == 0, done.stderr
    newest = max(folder.glob("*/result.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(newest.read_text())


@pytest.mark.parametrize("name", ["dpo", *LATER])
def test_a_sample_ends_well_and_is_measured_on_held_out_rows(name, tmp_path) -> None:
    result = run(f"addition-{name}", tmp_path)

    lines = (tmp_path / f"addition-{name}-1" / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    measured = [line for line in metrics if "eval_loss" in line]
    assert (result["run"], result["step"]) == (f"addition-{name}-1", 2)
    assert len(measured) == 1
    assert measured[0]["eval_num_sequences"] > 50
    if name != "kto":
        assert 0 <= measured[0]["eval_preference_accuracy"] <= 1


def test_a_reward_model_gives_reward_to_a_run_that_names_it(tmp_path) -> None:
    from transformers import AutoModelForSequenceClassification

    result = run("addition-sft-rm-grpo", tmp_path)

    folder = tmp_path / "preferred-grpo-1" / "models" / "reward" / "preferred-rm"
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    lines = (tmp_path / "preferred-grpo-1" / "metrics.jsonl").read_text().splitlines()
    sources = [json.loads(line).get("reward_by_source") for line in lines]
    assert (result["run"], result["step"]) == ("preferred-grpo-1", 2)
    assert model.config.num_labels == 1
    assert {"preferred-rm", "exact-match"} <= set(next(filter(None, sources)))
