"""A real sweep whose loser's place is taken by a fork of the winner; it is killed when that is decided, and given again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_sweeps import write_tiny_run
from warm import start_rollout

from rollout.ledger.opening import open_reader
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.catalogue import list_catalogue
from rollout.runs.snapshots.places import WhereToLook, read_config

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

REWARDS = """
import pathlib, time

calls = 0

def held(prompts, completions, rows):
    global calls
    calls += 1
    due = time.monotonic() + 3
    while calls > 8 and time.monotonic() < due and pathlib.Path(__file__).with_name("held").exists():
        time.sleep(0.02)
    return [1.0 for _ in completions]
"""
WORDS = (
    *("sweep", "-f", "tiny.yaml", "--parallel", "2", "--forks", "1"),
    *("--over", "train.rewards[0].weight=0.25,1", "--halve-at", "4", "--halve-factor", "2"),
)
LOSER, WINNER, FORK = "tiny-weight-0-25", "tiny-weight-1", "tiny-sweep-f001"
WAIT_SECONDS = 300.0


def read_points(folder: Path) -> dict[str, dict]:
    path = folder / "runs" / "tiny-sweep" / "sweep.json"
    found = json.loads(path.read_text())["points"] if path.exists() else []
    return {one["name"]: one for one in found}


@dataclass
class Life:
    """One start of the sweep, and what it says."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        with (self.folder / self.name).open("wb") as file:
            self.process = start_rollout(
                *WORDS,
                folder=self.folder,
                out=file.fileno(),
                err=file.fileno(),
                environment={"ROLLOUT_HOME": str(self.folder / "runs")},
            )

    @property
    def said(self) -> str:
        return (self.folder / self.name).read_text()

    def killed_once(self, there: Callable[[dict[str, dict]], object]) -> dict[str, dict]:
        """SIGKILL as soon as the book says so; what it said then."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not there(points := read_points(self.folder)):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)
        self.process.kill()
        self.process.wait(WAIT_SECONDS)
        return points


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    folder: Path
    decided: dict[str, dict]
    code: int
    said: str
    points: dict[str, dict]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Told:
    folder = tmp_path_factory.mktemp("forked")
    write_tiny_run(folder, REWARDS, "held", train={"maxSteps": 7}, snapshots={"everySteps": 1})
    (folder / "held").touch()
    decided = Life(folder, "first").killed_once(lambda points: FORK in points)
    (folder / "held").unlink()
    last = Life(folder, "second")
    code = last.process.wait(WAIT_SECONDS)
    return Told(
        folder=folder,
        decided=decided,
        code=code,
        said=last.said,
        points=read_points(folder),
    )


def test_the_fork_stands_in_the_book_before_anything_is_done_for_it(told):
    fork = told.decided[FORK]
    assert told.decided[LOSER]["state"] == "stopped"
    assert fork["state"] == "waiting"
    assert fork["settings"] == {"train.rewards[0].weight": 0.25}
    assert fork["forked_from"]["name"] == WINNER
    assert fork["forked_from"]["step"] >= 4


def test_the_sweep_ends_with_the_loser_stopped_and_the_others_at_their_end(told):
    assert told.code == 0, told.said
    assert {name: one["state"] for name, one in told.points.items()} == {
        LOSER: "stopped",
        WINNER: "finished",
        FORK: "finished",
    }
    assert f"{FORK}: finished, a fork of {WINNER}" in told.said


def test_no_member_has_begun_twice_and_one_snapshot_was_taken(told):
    runs = sorted(one.parent.name for one in (told.folder / "runs").glob("*/worker.json"))
    assert runs == [f"{FORK}-1", f"{LOSER}-1", f"{WINNER}-1"]
    place = told.folder / "runs" / f"{WINNER}-1" / "objects"
    found = list_catalogue(WhereToLook(object_path=str(place))).found
    assert [one.manifest.header.label for one in found] == [FORK]
    assert told.points[FORK]["forked_from"]["digest"] == f"blake3:{found[0].manifest.id}"


def test_the_fork_has_begun_with_the_snapshot_and_made_the_steps_after_it_only(told):
    run = RunDir(path=told.folder / "runs" / f"{FORK}-1")
    restored = json.loads((run.path / "restored.json").read_text())
    assert told.points[FORK]["forked_from"]["digest"] == f"blake3:{restored['snapshot']}"
    assert 0 < restored["step"] < 7
    config = read_config(run)
    with open_reader(config.spec.storage, run.ledger, config.run.uid) as ledger:
        assert ledger.run().step == 7
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(one)["step"] for one in lines][-1] == 7
    assert json.loads(lines[-1])["reward"] == 0.25
