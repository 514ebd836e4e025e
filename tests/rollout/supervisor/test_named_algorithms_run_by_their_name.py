"""One word in ``preset`` is enough: the run ends well and its metrics say what the name asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: named}}
spec:
  preset: {preset}
  model: {{uri: "rollout://tiny-adder"}}
  train:
    algorithm: {{grpo: {{promptsPerStep: 4, {more}}}}}
    environment: {{builtin: {{name: arithmetic}}}}
    rewards: [{{builtin: {{name: exact-match}}}}]
    sampling: {{maxNewTokens: 5}}
    maxSteps: 3
"""


def run(folder: Path, preset: str, more: str = "groupSize: 4") -> tuple[dict[str, Any], list[Any]]:
    """The result, and the metrics of every step."""
    path = folder / "named.yaml"
    path.write_text(MANIFEST.format(preset=preset, more=more))
    home = {"ROLLOUT_HOME": str(folder / "runs")}
    done = run_rollout("run", "-f", str(path), folder=folder, environment=home)
    assert done.returncode == 0, done.stderr
    ended = folder / "runs" / "named-1"
    lines = (ended / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    return json.loads((ended / "result.json").read_text()), [m for m in metrics if m.get("loss")]


def test_dapo_drops_groups_without_signal_and_refills(tmp_path) -> None:
    result, steps = run(tmp_path, "dapo@v1")

    assert result["step"] == len(steps) == 3
    assert [step["zero_variance_share"] for step in steps] == [0, 0, 0]
    assert all("overlong_penalty" in step for step in steps)


@pytest.mark.slow
def test_rloo_pays_the_kl_from_the_reward(tmp_path) -> None:
    """Quick: learner/test_every_named_algorithm_is_cut_freely.py takes the name to the same settings and a step."""
    result, steps = run(tmp_path, "rloo@v1")

    assert result["step"] == 3
    assert all("kl_per_answer" in step and "kl_loss" not in step for step in steps)
    # The policy starts as the reference, and leaves it.
    assert steps[0]["reference_kl"] == pytest.approx(0, abs=1e-9)
    assert steps[-1]["reference_kl"] > 0


@pytest.mark.slow
def test_reinforce_plus_plus_learns_from_lone_completions(tmp_path) -> None:
    """Quick: learner/test_every_named_algorithm_is_cut_freely.py, coordinator/test_a_run_that_cannot_learn_says_so.py (pooled)."""
    result, steps = run(tmp_path, "reinforce-plus-plus@v1", more="epochs: 2")

    assert result["step"] == 3
    assert all(step["num_sequences"] == step["num_groups"] == 4 for step in steps)
    assert all("zero_variance_share" not in step for step in steps)
    assert all(step["num_updates"] == 2 for step in steps)
