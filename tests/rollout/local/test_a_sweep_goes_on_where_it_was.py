"""Real sweeps of tiny runs: a failure stops no other point, what is finished is not run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: tiny}
spec:
  seed: 3
  model: {uri: "rollout://tiny-qwen2?hidden=32&layers=1&heads=2&kv_heads=1&intermediate=32&context=64"}
  train:
    algorithm: {grpo: {promptsPerStep: 2, groupSize: 2}}
    environment: {builtin: {name: arithmetic, parameters: [{name: digits, value: "1"}]}}
    rewards: [{python: {path: mine.py, function: even}}]
    sampling: {maxNewTokens: 3}
    optimizer: {adamw: {learningRate: "1e-3"}}
    maxSteps: 2
"""
REWARDS = """
def even(prompts, completions, rows):
    return [sum(token % 2 == 0 for token in c.token_ids) / len(c.token_ids) for c in completions]

def broken(prompts, completions, rows):
    raise ValueError("this reward is broken")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sweep")
    (path / "tiny.yaml").write_text(MANIFEST)
    (path / "mine.py").write_text(REWARDS)
    return path


def hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder: Path, *words: str) -> subprocess.Popen:
    """A sweep as from a terminal; a shell's background job would pass on that it ignores SIGINT."""
    return subprocess.Popen(
        [sys.executable, "-m", "rollout", "sweep", "-f", "tiny.yaml", *words],
        cwd=folder,
        env={**os.environ, "ROLLOUT_HOME": str(folder / "runs"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,  # noqa: PLW1509 - nothing else runs in this process
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, said = process.communicate(timeout=800)
    return process.returncode, out, said


def points(folder: Path, name: str) -> dict[str, dict]:
    document = json.loads((folder / "runs" / name / "sweep.json").read_text())
    return {point["name"]: point for point in document["points"]}


def test_a_point_that_fails_is_named_and_stops_no_other(folder):
    words = ("--name", "mixed", "--over", "train.rewards[0].python.function=broken,even")

    code, _, said = finish(start(folder, *words, "--parallel", "2"))

    found = points(folder, "mixed")
    assert code == 1, said
    assert found["tiny-function-even"]["state"] == "finished"
    assert found["tiny-function-broken"]["state"] == "failed"
    assert "this reward is broken" in found["tiny-function-broken"]["message"]
    assert "tiny-function-broken: failed" in said
    assert (folder / "runs" / "tiny-function-even-1" / "report.html").exists()


def test_what_is_finished_is_not_run_again_and_a_page_compares(folder):
    words = ("--over", "train.rewards[0].python.function=even", "--seeds", "2")
    ledger = folder / "runs" / "tiny-function-even-seed-3-1" / "ledger.db"

    first = finish(start(folder, *words))
    before = ledger.stat().st_mtime_ns
    second = finish(start(folder, *words, "--output", "json"))

    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "ranked by reward" in first[1]
    assert ledger.stat().st_mtime_ns == before
    document = json.loads(second[1])
    assert [point["skipped"] for point in document["points"]] == [True, True]
    assert document["comparison"]["settings"] == {"seed": [3, 4]} or document["comparison"][
        "settings"
    ] == {"seed": [4, 3]}
    assert "2 runs compared" in (folder / "runs" / "tiny-sweep" / "compare.html").read_text()


def test_a_changed_manifest_is_another_experiment(folder):
    words = ("--name", "other", "--over", "train.rewards[0].python.function=even")
    code, _, said = finish(start(folder, *words, "--set", "train.sampling.maxNewTokens=4"))

    assert code == 0, said
    assert (folder / "runs" / "tiny-function-even-2" / "result.json").exists()


def test_a_killed_sweep_goes_on_with_the_point_it_was_at(folder):
    words = ("--name", "killed", "--set", "train.maxSteps=40", "--over", "seed=7,8")
    run = folder / "runs" / "tiny-seed-7-1"
    process = start(folder, *words)
    wait_for_steps(run)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)

    code, _, said = finish(start(folder, *words))

    assert code == 0, said
    assert "tiny-seed-7: going on with tiny-seed-7-1" in said
    assert {point["state"] for point in points(folder, "killed").values()} == {"finished"}
    assert not (folder / "runs" / "tiny-seed-7-2").exists()
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(41))


def test_an_interrupted_sweep_saves_and_says_130(folder):
    words = ("--name", "stopped", "--set", "train.maxSteps=4000", "--over", "seed=17,18")
    process = start(folder, *words)
    wait_for_steps(folder / "runs" / "tiny-seed-17-1")
    process.send_signal(signal.SIGINT)

    code, _, said = finish(process)

    assert code == 130, said
    states = [point["state"] for point in points(folder, "stopped").values()]
    assert states == ["interrupted", "waiting"]


def wait_for_steps(run: Path) -> None:
    """Until the run has committed a few steps."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        file = run / "metrics.jsonl"
        if file.exists() and len(file.read_text().splitlines()) > 3:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} never committed a step")
