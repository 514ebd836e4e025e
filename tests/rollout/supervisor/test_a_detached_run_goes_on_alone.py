"""A run that was started with ``--detach`` outlives who started it, and is watched, stopped and gone on with by its name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_jobs import SUMS_MANIFEST, members, write_sums
from warm import outside_of_tests, run_rollout

from rollout.runs.run_dir import RunDir, find_owner, prepare_run_dir

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
STEPS_SEEN = 3
ROLLOUT = str(Path(sys.executable).with_name("rollout"))


@pytest.fixture
def folder(tmp_path):
    """A person's folder; whatever still runs in it ends with the test."""
    write_sums(tmp_path, SUMS_MANIFEST)
    yield tmp_path
    for lock in tmp_path.glob("runs/*/supervisor.lock"):
        for process in members(lock.parent):
            process.kill()
        if owner := find_owner(RunDir(path=lock.parent)):
            os.kill(owner, signal.SIGKILL)


def start(folder, *words, **options):
    return subprocess.Popen(
        [ROLLOUT, *words],
        cwd=folder,
        env={**outside_of_tests(), "ROLLOUT_HOME": str(folder / "runs")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def call(folder, *words, code=0):
    process = start(folder, *words)
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, f"{out}\n{err}"
    return out, err


def warm(folder, *words):
    """What needs no terminal: standard output."""
    done = run_rollout(*words, folder=folder, environment={"ROLLOUT_HOME": str(folder / "runs")})
    assert done.returncode == 0, done.stderr
    return done.stdout


def chains(folder, run):
    return dict(json.loads(warm(folder, "runs", "show", run, "--output", "json"))["chains"])


def test_it_outlives_its_terminal_and_comes_to_the_same_chain_after_a_stop(folder):
    starter = start(folder, "run", "-f", "m.yaml", "--detach", start_new_session=True)
    out, err = starter.communicate(timeout=600)
    assert starter.returncode == 0, err
    assert "small-1 goes on in the background" in out
    run = RunDir(path=folder / "runs" / "small-1")
    owner = find_owner(run)
    assert owner is not None
    assert os.getsid(owner) != starter.pid

    watching = start(folder, "runs", "watch", "--output", "json")
    while "step 0" in (line := json.loads(watching.stdout.readline()))["progress"] or (
        line["progress"] == "starting"
    ):
        assert line["run"] == "small-1"
    deadline = time.monotonic() + 120
    while len(chains(folder, "small-1")) < STEPS_SEEN:
        assert time.monotonic() < deadline
    out, _ = call(folder, "stop", "small-1")
    assert "--resume small-1" in out
    rest, _ = watching.communicate(timeout=60)
    assert json.loads(rest.splitlines()[-1])["progress"].startswith("ended: ")
    assert find_owner(run) is None
    assert "interrupted, state saved" in (run.logs / "supervisor.log").read_text()
    assert "is not running" in call(folder, "stop", "small-1")[1]

    stopped = chains(folder, "small-1")
    steps = max(stopped) + 2
    more = ("--set", f"train.maxSteps={steps}")
    call(folder, "run", "-f", "m.yaml", *more, "--resume", "small-1", "--detach")
    out, _ = call(folder, "attach", "small-1")
    assert f"Succeeded ({steps} steps committed)" in out
    assert len(list(run.logs.glob("supervisor*.log"))) == 2
    warm(folder, "run", "-f", "m.yaml", *more)
    assert chains(folder, "small-1") == chains(folder, "small-2")
    assert "Succeeded" in call(folder, "attach", "small-1")[0]


def test_a_measurement_goes_on_alone_too_and_says_at_the_end_what_it_came_to(folder):
    suite = ("--suite", "arithmetic", "--limit", "4", "--max-tokens", "4")
    out, _ = call(folder, "eval", "--model", "rollout://tiny-qwen2", *suite, "--detach")
    assert "eval-1 goes on in the background" in out

    out, _ = call(folder, "attach", "eval")
    assert "Succeeded" in out
    assert "4 prompts" in out


def test_what_is_wrong_is_said_by_the_command_itself(folder):
    (folder / "rows.jsonl").unlink()

    _, err = call(folder, "run", "-f", "m.yaml", "--detach", code=2)

    assert "rows.jsonl" in err
    assert list((folder / "runs").iterdir()) == []


def test_a_number_in_a_lock_that_is_another_process_by_now_owns_nothing(tmp_path):
    run = prepare_run_dir(tmp_path / "small-1")
    run.lock.write_text(json.dumps({"pid": os.getpid()}))

    assert find_owner(run) is None
    with run.lock.open():
        assert find_owner(run) == os.getpid()
