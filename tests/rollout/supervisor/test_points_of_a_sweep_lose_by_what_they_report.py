"""Points of a sweep on this machine are compared by their own files, with the rule of a RolloutSweep; what says nothing counts for nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollout.cli.main import main
from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout.runs.run_dir import RunDir
from rollout.supervisor.sweeps.book import Sweep, exit_code_of, read_stopped
from rollout.supervisor.sweeps.halving import (
    Halving,
    PointsComparer,
    Reports,
    parse_step,
    require_objective,
)
from rollout.supervisor.sweeps.points import parse_axis, plan_points
from rollout_api.sweeps.halving import HalvingRule

RULE = HalvingRule(first_step=2, factor=2, min_runs=2)
BY_REWARD = Halving(rule=RULE, metric="RewardMean")
BY_EVALUATION = Halving(rule=RULE, metric="BestEvaluation")
ONLINE = {
    "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "maxSteps": 8,
}


@dataclass
class Told:
    """A run's folder that a test writes into."""

    run: RunDir

    def say(self, *lines: str | bytes) -> None:
        with (self.run.path / "metrics.jsonl").open("ab") as file:
            for line in lines:
                file.write(line if isinstance(line, bytes) else f"{line}\n".encode())

    def step(self, step: int, reward: float | None) -> None:
        self.say(json.dumps({"step": step, "reward": reward}))

    def choose(self, text: str) -> None:
        (self.run.path / "snapshots").mkdir(exist_ok=True)
        (self.run.path / "snapshots" / "Best.json").write_text(text)


def folder(tmp_path: Path, name: str) -> Told:
    (tmp_path / name).mkdir()
    return Told(RunDir(path=tmp_path / name))


@pytest.fixture
def told(tmp_path) -> Told:
    return folder(tmp_path, "one")


def test_a_point_is_compared_by_what_it_had_at_the_rung_itself(told):
    reports = Reports(told.run.path, BY_REWARD)
    for step in range(9):
        told.step(step, step / 10)
    assert reports.read() == {2: 0.2, 4: 0.4, 8: 0.8}


def test_what_is_half_written_is_read_once_it_is_whole(told):
    reports = Reports(told.run.path, BY_REWARD)
    told.say(b'{"step": 2, "rew')
    assert reports.read() == {}
    told.say(b'ard": 0.5}\n')
    assert reports.read() == {2: 0.5}


def test_a_file_that_is_cut_off_is_read_on(told):
    reports = Reports(told.run.path, BY_REWARD)
    told.step(2, 0.5)
    reports.read()
    (told.run.path / "metrics.jsonl").write_text("")
    reports.read()
    told.step(4, 0.7)
    assert reports.read() == {2: 0.5, 4: 0.7}


def test_a_run_that_has_told_nothing_has_no_rung(told):
    assert Reports(told.run.path, BY_REWARD).read() == {}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b"null",
        b'{"step": true, "reward": 1}',
        b'{"step": -1, "reward": 1}',
        b'{"step": "2", "reward": 1}',
        b'{"step": 2.5, "reward": 1}',
        b'{"step": 99999999999999999999999, "reward": 1}',
        b"{" * 2000,
    ],
)
def test_a_line_that_is_none_says_nothing(told, line):
    assert parse_step(line) is None
    told.say(line + b"\n")
    told.step(2, 0.5)
    assert Reports(told.run.path, BY_REWARD).read() == {2: 0.5}


@pytest.mark.parametrize(
    "reward", ["null", "true", '"0.9"', "[1]", "NaN", "Infinity", "1e999", "1" * 400]
)
def test_a_reward_that_is_no_finite_number_is_none(told, reward):
    told.say(f'{{"step": 2, "reward": {reward}}}')
    assert Reports(told.run.path, BY_REWARD).read() == {}


def test_the_best_evaluation_is_compared_where_that_is_asked_for(told):
    reports = Reports(told.run.path, BY_EVALUATION)
    told.step(2, 0.9)
    assert reports.read() == {}
    told.choose('{"value": 0.25, "step": 2}')
    told.step(3, 0.9)
    assert reports.read() == {2: 0.25}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"value": "x"}', '{"value": NaN}'])
def test_a_best_version_that_cannot_be_read_says_nothing(told, text):
    told.choose(text)
    told.step(2, 0.9)
    assert Reports(told.run.path, BY_EVALUATION).read() == {}


def test_losers_are_those_of_the_rule_and_only_of_points_at_work(tmp_path):
    runs = {name: folder(tmp_path, name) for name in "abcd"}
    for place, one in enumerate(runs.values()):
        one.step(2, place / 10)
    comparer = PointsComparer(BY_REWARD)
    found = comparer.look({name: one.run for name, one in runs.items()}, ["a", "c"])
    assert [(one.name, one.explain()) for one in found] == [
        ("a", "at step 2 it was number 4 of 4, of which 2 go on")
    ]
    assert comparer.rungs("d") == {2: 0.3}
    assert comparer.rungs("nobody") == {}


def points(train, **spec):
    kept = {"model": {"uri": "rollout://tiny-adder"}, "train": train, **spec}
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    data = {**head, "metadata": {"name": "tiny"}, "spec": kept}
    document = Document(source="tiny.yaml", data=data, lines={})
    return plan_points(document, [parse_axis("seed=0,1")])


SFT = {
    "algorithm": {"sft": {}},
    "data": {"jsonl": {"uri": "/data/rows.jsonl"}},
    "maxSteps": 8,
}
SUITE = {"suite": {"builtin": {"name": "arithmetic"}}}


@pytest.mark.parametrize(
    ("train", "spec", "metric", "words"),
    [
        (SFT, {}, "RewardMean", "sft samples nothing and reports no reward"),
        (ONLINE, {}, "BestEvaluation", "no evaluation of the run selects"),
        (ONLINE, {"evaluations": [{**SUITE, "selects": True}]}, "BestEvaluation", "at the end"),
    ],
)
def test_points_that_report_nothing_before_their_end_are_refused_by_name(
    train, spec, metric, words
):
    with pytest.raises(SpecError, match=words):
        require_objective(points(train, **spec), metric)


def test_points_that_report_are_taken():
    require_objective(points(ONLINE), "RewardMean")
    suite = {**SUITE, "selects": True, "everySteps": 2}
    require_objective(points(ONLINE, evaluations=[suite]), "BestEvaluation")


@pytest.mark.parametrize(
    "words", [("--halve-factor", "2"), ("--halve-by", "RewardMean"), ("--halve-at", "0")]
)
def test_halving_that_says_no_step_is_refused_by_name(tmp_path, monkeypatch, capsys, words):
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    spec = {"model": {"uri": "rollout://tiny-adder"}, "train": ONLINE}
    (tmp_path / "tiny.json").write_text(
        json.dumps({**head, "metadata": {"name": "tiny"}, "spec": spec})
    )
    command = ["rollout", "sweep", "-f", str(tmp_path / "tiny.json"), "--over", "seed=0,1"]
    monkeypatch.setattr(sys, "argv", [*command, "--dry-run", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "halve-" in capsys.readouterr().err


def test_a_damaged_book_of_a_sweep_is_named(tmp_path):
    sweep = Sweep(folder=tmp_path, home=tmp_path, halving=BY_REWARD)
    assert read_stopped(sweep) == {}
    for text in ("{", "[]", '{"points": 7}', '{"points": [{"name": "a"}]}'):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(SpecError, match=r"sweep.json cannot be read"):
            read_stopped(sweep)


def test_a_sweep_whose_losers_are_stopped_has_gone_well():
    @dataclass
    class Ended:
        state: str
        exit_code: int | None

    assert exit_code_of([Ended("finished", 0), Ended("stopped", 130)]) == 0
