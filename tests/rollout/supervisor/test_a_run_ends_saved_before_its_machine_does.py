"""A run on a cloud's machine hears that the machine is taken away, ends saved, and goes on elsewhere to the same chain."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from local_jobs import SUMS_MANIFEST, write_sums
from metadata_service import INSTANCE, QUIET, metadata_service
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]
MANIFEST = SUMS_MANIFEST + "  snapshots: {everySteps: 50, onPreemption: SnapshotIfTime}\n"
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
    write_sums(tmp_path, MANIFEST)
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
