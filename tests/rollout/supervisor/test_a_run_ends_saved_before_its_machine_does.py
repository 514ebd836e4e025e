"""A run on a cloud's machine hears that the machine is taken away, ends saved, and goes on elsewhere to the same chain."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from metadata_service import INSTANCE, QUIET, metadata_service
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]
MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: small}
spec:
  seed: 3
  model: {uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"}
  train:
    maxSteps: 100000
    data: {jsonl: {uri: rows.jsonl}}
    algorithm: {sft: {batchSize: 2}}
  snapshots: {everySteps: 50, onPreemption: SnapshotIfTime}
"""
RESUMED = 5
"""Steps that are taken after the notice."""


def call(folder, *words, code=0, **environment):
    environment["ROLLOUT_HOME"] = str(folder / "runs")
    done = run_rollout(*words, folder=folder, environment=environment)
    assert done.returncode == code, done.stderr
    return done


def chains(folder, run):
    return dict(json.loads(call(folder, "runs", "show", run, "--output", "json").stdout)["chains"])


def wait_for_steps(folder, running):
    """Until the run has committed a step."""
    seen = ""
    while '"chains": [' not in seen or '"chains": []' in seen:
        assert not running.done(), running.result()
        environment = {"ROLLOUT_HOME": str(folder / "runs")}
        shown = ("runs", "show", "small-1", "--output", "json")
        seen = run_rollout(*shown, folder=folder, environment=environment).stdout


@pytest.fixture
def folder(tmp_path):
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "m.yaml").write_text(MANIFEST)
    return tmp_path


def test_a_preempted_machine_costs_no_step(folder):
    with metadata_service() as service, ThreadPoolExecutor(1) as aside:
        service.answers |= QUIET
        address = service.url.removeprefix("http://")
        wanted = partial(call, folder, "run", "-f", "m.yaml", code=130)
        running = aside.submit(wanted, GCE_METADATA_HOST=address)
        wait_for_steps(folder, running)
        service.answers[f"{INSTANCE}/preempted"] = b"TRUE"
        done = running.result(600)
    assert "Compute Engine preempts this machine: at 20" in done.stderr
    assert "stopping at the next step boundary, state saved" in done.stderr
    result = json.loads((folder / "runs" / "small-1" / "result.json").read_text())
    assert result["anchor"].endswith(f"{result['step']:06d}")
    steps = result["step"] + RESUMED
    wanted = ("run", "-f", "m.yaml", "--set", f"train.maxSteps={steps}")
    call(folder, *wanted, "--resume", "Latest")
    call(folder, *wanted)
    assert chains(folder, "small-1") == chains(folder, "small-2")


def test_without_the_setting_no_metadata_service_is_asked(folder):
    with metadata_service() as service:
        address = service.url.removeprefix("http://")
        drains = ("--set", "snapshots.onPreemption=Drain", "--set", "train.maxSteps=2")
        call(folder, "run", "-f", "m.yaml", *drains, GCE_METADATA_HOST=address)
    assert service.asked == []
