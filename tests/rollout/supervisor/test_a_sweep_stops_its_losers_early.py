"""A real sweep of two tiny runs, compared at step 2: the worse is saved and stopped, the better ends, and a second look changes nothing."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_sweeps import write_tiny_run
from warm import start_rollout

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

REWARDS = """
import pathlib, time

def held(prompts, completions, rows):
    if pathlib.Path(__file__).with_name("held").exists():
        time.sleep(0.5)
    return [1.0 for _ in completions]
"""
WORDS = (
    *("sweep", "-f", "tiny.yaml", "--parallel", "2"),
    *("--over", "train.rewards[0].weight=0.25,1", "--halve-at", "2", "--halve-factor", "2"),
)
LOSER, WINNER = "tiny-weight-0-25", "tiny-weight-1"
WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the sweep said, and its points by name, after its first end and after its second."""

    code: int
    said: str
    points: dict[str, dict]
    again: int
    said_again: str
    points_again: dict[str, dict]
    steps: dict[str, tuple[int, int]]


def read_points(folder: Path) -> dict[str, dict]:
    path = folder / "runs" / "tiny-sweep" / "sweep.json"
    found = json.loads(path.read_text())["points"] if path.exists() else []
    return {one["name"]: one for one in found}


def count_steps(folder: Path, name: str) -> int:
    lines = (folder / "runs" / f"{name}-1" / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["step"]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Told:
    folder = tmp_path_factory.mktemp("halved")
    write_tiny_run(folder, REWARDS, "held", train={"maxSteps": 60})
    (folder / "held").touch()

    def start(name):
        with (folder / name).open("wb") as file:
            return start_rollout(
                *WORDS,
                folder=folder,
                out=file.fileno(),
                err=file.fileno(),
                environment={"ROLLOUT_HOME": str(folder / "runs")},
            )

    sweep = start("first")
    deadline = time.monotonic() + WAIT_SECONDS
    while read_points(folder).get(LOSER, {}).get("state") != "stopped":
        assert time.monotonic() < deadline, (folder / "first").read_text()
        time.sleep(0.1)
    (folder / "held").unlink()
    code = sweep.wait(WAIT_SECONDS)
    points, before = read_points(folder), {n: count_steps(folder, n) for n in (LOSER, WINNER)}
    again = start("second").wait(WAIT_SECONDS)
    return Told(
        code=code,
        said=(folder / "first").read_text(),
        points=points,
        again=again,
        said_again=(folder / "second").read_text(),
        points_again=read_points(folder),
        steps={name: (before[name], count_steps(folder, name)) for name in (LOSER, WINNER)},
    )


def test_the_worse_is_stopped_and_the_better_ends(told):
    assert told.code == 0, told.said
    assert {name: one["state"] for name, one in told.points.items()} == {
        LOSER: "stopped",
        WINNER: "finished",
    }
    words = "at step 2 it was number 2 of 2, of which 1 go on"
    assert told.points[LOSER]["message"] == words
    assert f"{LOSER}: stopped: {words}" in told.said
    assert told.points[LOSER]["rungs"][0] == {"step": 2, "value": 0.25}


def test_the_loser_has_saved_itself_before_its_end(told):
    assert told.points[LOSER]["exit_code"] == 130
    assert 2 <= told.steps[LOSER][0] < 60
    assert told.steps[WINNER][0] == 60


def test_given_again_nobody_runs_again(told):
    assert told.again == 0, told.said_again
    assert "stopped before" in told.said_again
    assert {one["skipped"] for one in told.points_again.values()} == {True}
    assert all(before == after for before, after in told.steps.values())
