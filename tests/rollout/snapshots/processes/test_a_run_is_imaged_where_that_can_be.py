"""A run that asks for images of its learner is refused before it starts where none can be made; a snapshot of one that cannot be imaged says why."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from rollout.errors import SnapshotRefused, SpecError
from rollout.runs.plan.images import require_images_for
from rollout.runs.processes import learners
from rollout.runs.processes.learners import end_learner, find_learner, name_cell, read_cell_name
from rollout.runs.run_dir import RunDir
from rollout.snapshots.processes.cell import cells_of_runs, make_cell
from rollout.snapshots.processes.contract import Tree
from rollout_api.v1alpha1.run import RolloutRunSpec

SPEC = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {
        "algorithm": {"sft": {}},
        "data": {"jsonl": {"uri": "rows.jsonl"}},
        "maxSteps": 1,
    },
}
PROCESS = {**SPEC, "snapshots": {"include": ["TrainState", "Process"]}}


def test_where_there_is_no_criu_nothing_starts(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLOUT_CRIU", str(tmp_path / "none"))
    require_images_for(RolloutRunSpec.model_validate(SPEC))
    with pytest.raises(SnapshotRefused, match="not supported here: ROLLOUT_CRIU"):
        require_images_for(RolloutRunSpec.model_validate(PROCESS))
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho Version: 3.17\n")
    old.chmod(0o755)
    monkeypatch.setenv("ROLLOUT_CRIU", str(old))
    with pytest.raises(SnapshotRefused, match=r"CRIU 3\.17: 4\.2 or newer"):
        require_images_for(RolloutRunSpec.model_validate(PROCESS))


@pytest.mark.parametrize(("spec", "word"), [(SPEC, "without Process"), (PROCESS, "not at work")])
def test_a_run_whose_learner_cannot_be_imaged_says_why(monkeypatch, tmp_path, spec, word):
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    run = RunDir(path=tmp_path / "run-1")
    run.path.mkdir()
    config = SimpleNamespace(spec=RolloutRunSpec.model_validate(spec))
    monkeypatch.setattr(learners, "read_config", lambda _: config)
    with pytest.raises(SpecError, match=word):
        find_learner(run)
    assert read_cell_name(run) is None
    cell = make_cell(cells_of_runs(tmp_path), "learner", ())
    name_cell(run, cell)
    assert read_cell_name(run) == cell.uid
    with pytest.raises(SpecError, match=word):
        find_learner(run)


@pytest.mark.process
def test_a_learner_that_a_killed_criu_has_left_is_ended_whole():
    """Its supervisor starts it again; one that is stopped, or cut off from its other ranks, would be waited for."""
    script = "sleep 1000 & sleep 1000 & echo $!; wait"
    shell = subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert shell.stdout is not None
        stopped = int(shell.stdout.readline())
        os.kill(stopped, signal.SIGSTOP)
        while _state(stopped) != "T":
            pass
        children = learners.tree_of(shell.pid)
        assert len(children) == 2
        end_learner(Tree(init=shell.pid, root=1))
        while any(_state(pid) not in ("", "Z") for pid in children):
            pass
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - /proc
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
