"""``rollout run --reload-plugins``: real edits of plugins while a real run goes on; its samples say what made them."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from plugin_kit import write

from rollout.errors import LedgerError
from rollout.plugins.sidecar.manifest import folder_digest
from rollout.report.gather import open_ledger, read_steps

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1800)]
SECONDS_MAX = 600.0
GAME = """
    class Game:
        def __init__(self, row):
            self.row = row
        def start(self):
            return self.row["prompt"] {}
        def step(self, reply):
            return "over", True
    serve(environment=Game)
"""
RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "edited"},
    "spec": {
        "model": {"uri": "rollout://tiny-agent"},
        "numerics": {"mode": "Fast"},
        "code": {"path": "code"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "sampling": {"maxNewTokens": 6},
            "data": {"jsonl": {"uri": "rows.jsonl"}},
            "environment": {"plugin": {"path": "game"}},
            "rewards": [{"plugin": {"path": "marks"}}],
            "maxSteps": 1_000_000,
        },
        "snapshots": {"everySteps": 1, "keepLast": 3},
    },
}


class Edited:
    """The run, and the folder of code that a person edits meanwhile."""

    def __init__(self, place):
        self.place, self.code, self.run = place, place / "code", place / "runs" / "edited-1"
        self._process = None

    def marks(self, body):
        """A version of the reward; its digest."""
        write(self.code / "marks", f"serve(reward=lambda p, c, r: {body})", name="marks")
        return folder_digest(self.code / "marks")

    def game(self, more=""):
        write(self.code / "game", GAME.format(more), kind="environment", name="game")
        return folder_digest(self.code / "game")

    def ask(self, *words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "rollout", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=self.place,
            env=self._environment(),
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def start(self, *words):
        with (self.place / "said").open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollout", "run", "-f", "run.yaml", *words],
                stdout=said,
                stderr=said,
                cwd=self.place,
                env=self._environment(),
            )

    def stop(self):
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(SECONDS_MAX) == 130, self.said()

    def end(self):
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def said(self):
        return (self.place / "said").read_text()

    def until(self, what, condition):
        """Wait for what the run is to come to."""
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert self._process.poll() is None, f"{what}: it ended: {self.said()}"
            assert time.monotonic() < deadline, f"{what}: never: {self.said()}"
            time.sleep(0.1)

    def until_made_by(self, digest):
        """Wait for a step whose samples this version of the reward has scored."""
        self.until(f"a step of {digest}", lambda: digest in self.versions())

    def until_said(self, words):
        self.until(words, lambda: words in self.said())

    def versions(self):
        """Digests of the reward that made samples that were trained on, in the order of their steps."""
        try:
            found = [digest for step in read_steps(self.run) for digest in step["plugins"]["marks"]]
        except LedgerError:
            return []
        return list(dict.fromkeys(found))

    def kill_hosts(self):
        """``kill -9`` whatever hosts this run's plugins now."""
        for one in psutil.process_iter(["cmdline", "cwd"]):
            hosts = str(one.info["cwd"]).startswith(f"{self.run}/plugins/")
            if hosts and "plugin.py" in (one.info["cmdline"] or [])[-1:]:
                one.kill()

    def _environment(self):
        return {**os.environ, "ROLLOUT_HOME": str(self.place / "runs"), "HOME": str(self.place)}


@pytest.fixture
def edited(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Ask for tea.", "answer": ""}\n' * 4)
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    made = Edited(tmp_path)
    yield made
    made.end()


def test_samples_say_which_edit_made_them_and_no_edit_ends_the_run(edited):
    first = edited.marks("[0.5] * len(c)")
    game = edited.game()
    edited.start("--reload-plugins")
    edited.until_made_by(first)

    edited.game("+ ' please' * 30")
    edited.until_said("this run was planned for")
    edited.until_said("taken back: episodes are played with game 1.0.0")
    edited.game()
    edited.until_said("is again what episodes are played with")
    edited.marks("[float(one['not there']) for one in r]")
    edited.until_said("taken back: episodes are played with marks 1.0.0")
    edited.marks("[0.5")
    edited.until_said("what was changed is not taken: reward 'marks'")

    second = edited.marks("[1.5] * len(c)")
    edited.until_made_by(second)
    third = edited.marks("[2.5] * len(c)")
    edited.kill_hosts()
    edited.until_made_by(third)
    edited.stop()

    assert edited.versions() == [first, second, third]
    look(edited, game, [first, second, third])
    go_on(edited)


def look(edited, game, versions):
    """What a person sees afterwards."""
    shown = edited.ask("runs", "show", "edited-1")
    assert [v for v in versions if f"marks {v[:19]}: " in shown] == versions
    assert "grade        Logical" in shown
    assert "what was changed has failed" in shown
    report = json.loads(edited.ask("runs", "report", "edited-1", "--output", "json"))
    assert list(report["plugins"]["marks"]) == versions
    assert sum(report["plugins"]["marks"].values()) == report["dispositions"]["consumed"]
    assert list(report["plugins"]["game"]) == [game]

    rows = list(read_steps(edited.run))
    last = rows[-1]["step"]
    samples = edited.ask("runs", "samples", "edited-1", "--step", last, "--output", "json")
    assert {row["plugin/marks"] for row in json.loads(samples)} <= {*rows[-1]["plugins"]["marks"]}
    rewards = dict(zip(versions, (0.5, 1.5, 2.5), strict=True))
    with open_ledger(edited.run) as ledger:
        made = [one.trajectory for step in (1, last) for one in ledger.samples(step)]
    assert {one.plugins["marks"] for one in made} >= {versions[0], versions[2]}
    assert all(one.reward == rewards[one.plugins["marks"]] for one in made)

    made = edited.ask("snapshot", "create", "edited-1").strip()
    (listed,) = json.loads(edited.ask("snapshot", "list"))
    assert (listed["id"], listed["grade"]) == (made, "logical")
    assert "--reload-plugins" in listed["reason"]
    verified = json.loads(edited.ask("snapshot", "verify-resume", made, "--output", "json"))
    assert (verified["equal"], verified["grade"]) == (True, "logical")
    assert "--reload-plugins" in verified["reason"]


def go_on(edited):
    """Resumed without the option, it begins with what did well last, and takes what was edited meanwhile."""
    before = edited.versions()
    last = max(row["step"] for row in read_steps(edited.run))
    broken = edited.marks("[float(one['not there']) for one in r]")
    edited.start("--resume", "Latest")
    edited.until_said("taken back: episodes are played with marks 1.0.0")
    fourth = edited.marks("[3.5] * len(c)")
    edited.until_made_by(fourth)
    edited.stop()
    assert edited.versions() == [*before, fourth]
    assert broken not in edited.versions()
    after = [row["plugins"]["marks"] for row in read_steps(edited.run) if row["step"] > last]
    assert all({*one} <= {before[-1], fourth} for one in after)


def test_a_lock_holds_and_exact_is_refused_by_name(edited):
    first = edited.marks("[0.5] * len(c)")
    edited.game()
    said = edited.ask(
        "run", "-f", "run.yaml", "--reload-plugins", "--set", "numerics.mode=Exact", code=2
    )
    assert "numerics.mode is Exact" in said

    edited.ask("plugins", "lock", "code")
    edited.start("--reload-plugins")
    edited.until_made_by(first)
    edited.marks("[1.5] * len(c)")
    edited.until_said("what was changed is not taken: plugin marks")
    edited.ask("plugins", "lock", "code")
    edited.until_made_by(folder_digest(edited.code / "marks"))
    edited.stop()
