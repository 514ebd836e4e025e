"""``rollout train ALGORITHM``: YAML and TOML, planned without being run, and gone on with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from warm import run_rollout

from rollout.cli.starting.training import ALGORITHMS

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ADDER = "rollout://tiny-adder?steps=0"
ROWS = [
    {
        "prompt": f"1{n}+11=",
        "chosen": f"0{21 + n}",
        "rejected": "111",
        "answer": "021",
        "label": n > 3,
    }
    for n in range(8)
]
SAMPLED = {
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "sampling": {"maxNewTokens": 4},
}
OWN = {
    "grpo": {"promptsPerStep": 4, "groupSize": 2},
    "ppo": {"promptsPerStep": 4},
    "distill": {"promptsPerStep": 4, "teacher": {"uri": ADDER}},
}


def spec_of(algorithm: str) -> dict[str, Any]:
    online = algorithm in OWN
    settings = OWN.get(algorithm, {"batchSize": 4, "maxLength": 64})
    more = SAMPLED if online else {"data": {"jsonl": {"uri": "rows.jsonl"}}}
    train = {"algorithm": {algorithm: settings}, "maxSteps": 2, **more}
    return {"model": {"uri": ADDER}, "train": train}


def write(folder: Path, algorithm: str, form: str) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    path, spec = folder / f"small.{form}", spec_of(algorithm)
    if form == "yaml":
        head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
        path.write_text(json.dumps({**head, "metadata": {"name": "small"}, "spec": spec}))
    else:
        path.write_text('schema_version = 1\nname = "small"\n' + inline(spec))
    return path


def inline(spec: dict[str, Any]) -> str:
    """A mapping as TOML: its keys, each with an inline value."""
    return "".join(f"{key} = {value_of(value)}\n" for key, value in spec.items())


def value_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {value_of(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(value_of, value)) + "]"
    return json.dumps(value)


def train(folder: Path, algorithm: str, *words: str) -> subprocess.CompletedProcess[str]:
    home = {"ROLLOUT_HOME": str(folder / "runs")}
    return run_rollout("train", algorithm, *words, folder=folder, environment=home)


@pytest.mark.parametrize("form", ["toml", pytest.param("yaml", marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_dry_run_plans_and_starts_nothing(tmp_path, algorithm, form) -> None:
    path = write(tmp_path, algorithm, form)
    done = train(tmp_path, algorithm, "--config", path.name, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "small" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "algorithm", ["sft", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rm", "ppo"))]
)
def test_a_run_is_gone_on_with(tmp_path, algorithm) -> None:
    path = write(tmp_path, algorithm, "toml")
    first = train(tmp_path, algorithm, "-c", path.name)
    assert first.returncode == 0, first.stderr
    path.write_text(path.read_text().replace("maxSteps = 2", "maxSteps = 4"))
    second = train(tmp_path, algorithm, "-c", path.name, "--resume")
    assert second.returncode == 0, second.stderr
    (run,) = (tmp_path / "runs").glob("small-*")
    assert json.loads((run / "result.json").read_text())["step"] == 4
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [*range(0 if 0 in steps else 1, 5)]
    assert len(steps) == len(set(steps))
