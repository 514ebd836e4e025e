"""Real sweeps of tiny runs: a failure stops no other point, what is finished is not run again. The first is started plainly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_sweeps import write_tiny_run
from warm import start_rollout

from rollout.common.child_processes import Process
from rollout.runs.manifest import load_documents
from rollout.runs.prepare import prepare_run
from rollout.runs.run_dir import RunDir, find_run_dir
from rollout.runs.snapshots.places import read_config
from rollout.runs.validation import apply_overrides
from rollout.supervisor.sweeps.earlier import find_earlier

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

REWARDS = """
import pathlib, time

def even(prompts, completions, rows):
    if pathlib.Path(__file__).with_name("held").exists():
        time.sleep(0.5)
    return [sum(token % 2 == 0 for token in c.token_ids) / len(c.token_ids) for c in completions]

def broken(prompts, completions, rows):
    raise ValueError("this reward is broken")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sweep")
    train = {"optimizer": {"adamw": {"learningRate": "1e-3"}}, "maxSteps": 2}
    write_tiny_run(path, REWARDS, "even", train=train)
    return path


def hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class WarmSweep:
    """A sweep that is forked, and so are its points; it has its streams in files."""

    process: Process
    out: Path
    err: Path

    @classmethod
    def start(cls, folder: Path, *words: str) -> WarmSweep:
        out, err = folder / "warm.out", folder / "warm.err"
        with out.open("wb") as told, err.open("wb") as said:
            process = start_rollout(
                *("sweep", "-f", "tiny.yaml", *words),
                folder=folder,
                out=told.fileno(),
                err=said.fileno(),
                environment={"ROLLOUT_HOME": str(folder / "runs")},
            )
        return cls(process, out, err)

    def finish(self) -> tuple[int, str, str]:
        return self.process.wait(800), self.out.read_text(), self.err.read_text()


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


OVER = ("--set", "train.maxSteps=8", "--over", "seed=7,8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One sweep given three times: what each said, and how its points stood then."""

    interrupted: tuple[int, str, str]
    states_then: list[str]
    finished: tuple[int, str, str]
    again: tuple[int, str, str]
    before_and_after: tuple[int, int]


@pytest.fixture(scope="module")
def told(folder) -> Told:
    """Interrupted at its first point, killed at the same, gone on with to its end, and given once more."""
    run = folder / "runs" / "tiny-seed-7-1"
    (folder / "held").touch()
    sweep = WarmSweep.start(folder, *OVER)
    wait_for_steps(run, 2)
    os.kill(sweep.process.pid, signal.SIGINT)
    interrupted = sweep.finish()
    states = [point["state"] for point in points(folder, "tiny-sweep").values()]
    sweep = WarmSweep.start(folder, *OVER)
    wait_for_steps(run, 5)
    sweep.process.kill()
    sweep.process.wait(60)
    (folder / "held").unlink()
    finished = WarmSweep.start(folder, *OVER).finish()
    before = (run / "ledger.db").stat().st_mtime_ns
    again = WarmSweep.start(folder, *OVER, "--output", "json").finish()
    return Told(
        interrupted=interrupted,
        states_then=states,
        finished=finished,
        again=again,
        before_and_after=(before, (run / "ledger.db").stat().st_mtime_ns),
    )


def test_an_interrupted_sweep_saves_and_says_130(told):
    code, _, said = told.interrupted

    assert code == 130, said
    assert told.states_then == ["interrupted", "waiting"]


def test_a_killed_sweep_goes_on_with_the_point_it_was_at(told, folder):
    code, out, said = told.finished

    assert code == 0, said
    assert "ranked by reward" in out
    assert "tiny-seed-7: going on with tiny-seed-7-1" in said
    assert {point["state"] for point in points(folder, "tiny-sweep").values()} == {"finished"}
    assert not (folder / "runs" / "tiny-seed-7-2").exists()
    metrics = folder / "runs" / "tiny-seed-7-1" / "metrics.jsonl"
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(9))


def test_what_is_finished_is_not_run_again_and_a_page_compares(told, folder):
    code, out, said = told.again

    assert code == 0, said
    assert told.before_and_after[0] == told.before_and_after[1]
    document = json.loads(out)
    assert [point["skipped"] for point in document["points"]] == [True, True]
    [(field, values)] = document["comparison"]["settings"].items()
    assert (field, sorted(values)) == ("seed", [7, 8])
    assert "2 runs compared" in (folder / "runs" / "tiny-sweep" / "compare.html").read_text()


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ((), "tiny-seed-7-1"),
        (("train.maxSteps=9",), "tiny-seed-7-1"),
        (("train.maxSteps=7",), None),
        (("train.sampling.maxNewTokens=4",), None),
        (("train.optimizer.adamw.learningRate=0.01",), None),
    ],
)
def test_a_changed_manifest_is_another_experiment(told, folder, changed, found):
    assert told.finished[0] == 0
    [document] = load_documents(folder / "tiny.yaml")
    wanted = prepare_run(apply_overrides(document, ["train.maxSteps=8", "seed=7", *changed])).spec

    earlier = find_earlier(folder / "runs", "tiny-seed-7", wanted)

    assert (earlier and earlier.name) == found


def test_a_run_that_is_killed_while_it_is_resumed_can_still_be_gone_on_with(told, folder):
    assert told.finished[0] == 0
    home = folder / "runs"
    run = RunDir(path=home / "tiny-seed-7-1")
    manifest = home / "tiny-sweep" / "points" / "tiny-seed-7.yaml"
    words = ("--set", "train.maxSteps=9", "--resume", run.name)
    with (folder / "resumed").open("wb") as said:
        process = start_rollout(
            *("run", "-f", str(manifest), *words),
            folder=folder,
            out=said.fileno(),
            err=said.fileno(),
            environment={"ROLLOUT_HOME": str(home)},
        )
    deadline = time.monotonic() + 400
    while run.attempt_config.exists():
        assert time.monotonic() < deadline, (folder / "resumed").read_text()
        time.sleep(0.002)
    process.kill()
    process.wait(60)
    assert find_run_dir(home, "tiny-seed-7", "Latest").name == run.name
    assert read_config(run).spec.train.max_steps == 8


def wait_for_steps(run: Path, num_steps: int) -> None:
    """Until the run has committed so many steps."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        file = run / "metrics.jsonl"
        if file.exists() and len(file.read_text().splitlines()) > num_steps:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} never committed a step")
