"""``rollout sweep -f`` of a RolloutSweep: the points, the losers' rule and the forks that it has in a cluster, under the same names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rollout.cli.main import main
from rollout.errors import SpecError
from rollout.runs.manifest import load_documents
from rollout.runs.validation import apply_overrides
from rollout.supervisor.sweeps.book import Entry
from rollout.supervisor.sweeps.forking import build_fork, explore_settings
from rollout.supervisor.sweeps.manifest import is_sweep, plan_sweep
from rollout_api.sweeps.forking import explore
from rollout_api.sweeps.points import plan_points
from rollout_api.v1alpha1.sweep import RolloutSweep

RATE = "train.optimizer.adamw.learningRate"
GRID = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutSweep
metadata: {name: rates}
spec:
  parallelism: 3
  parameters:
  - {field: train.optimizer.adamw.learningRate, values: ["1e-5", "1e-4", "1e-3"]}
  - {field: train.maxStaleness, values: ["0", "1"]}
  earlyStopping: {halving: {firstStep: 5, factor: 2}}
  forks: {max: 4}
  template:
    spec:
      model: {uri: "rollout://tiny-adder"}
      numerics: {mode: Fast}
      train:
        algorithm: {grpo: {promptsPerStep: 4, groupSize: 2}}
        environment: {builtin: {name: arithmetic}}
        rewards: [{python: {path: mine.py, function: mine}}]
        maxSteps: 20
"""
CHANCE = GRID.replace(
    'values: ["1e-5", "1e-4", "1e-3"]}', 'range: {low: "1e-6", high: "1e-3", scale: Log}}'
).replace("  parallelism: 3\n", "  search: {random: {samples: 5, seed: 3}}\n")


@pytest.fixture
def write(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(p, c, r): return [0.0] * len(c)\n")

    def make(text) -> Path:
        (tmp_path / "rates.yaml").write_text(text)
        return tmp_path / "rates.yaml"

    return make


def planned(path, *overrides):
    [document] = load_documents(path)
    assert is_sweep(document)
    return plan_sweep(apply_overrides(document, overrides))


@pytest.mark.parametrize("text", [GRID, CHANCE], ids=["grid", "chance"])
def test_its_points_are_those_of_a_cluster(write, text):
    path = write(text)
    found = planned(path)
    spec = RolloutSweep.model_validate(load_documents(path)[0].data).spec
    values = [tuple(str(one) for one in point.settings.values()) for point in found.points]
    assert values == list(plan_points(spec))
    assert [point.name for point in found.points[:2]] == ["rates-000", "rates-001"]
    rewards = found.points[0].document.data["spec"]["train"]["rewards"]
    assert rewards[0]["python"]["path"] == str(path.parent / "mine.py")


def test_it_says_who_loses_how_many_are_forked_and_by_what_all_are_ranked(write):
    found = planned(write(GRID))
    assert (found.name, found.parallel, found.forks_max) == ("rates", 3, 4)
    assert found.halving is not None
    assert found.halving.rule.min_runs == 2
    assert found.ranked_by == "reward"
    whole = planned(write(GRID.replace("  forks: {max: 4}\n", "").replace("  earlyS", "  #")))
    assert (whole.halving, whole.forks_max) == (None, 0)


@pytest.mark.parametrize("text", [GRID, CHANCE], ids=["grid", "chance"])
def test_a_fork_explores_as_in_a_cluster(write, text):
    found = planned(write(text))
    winner = Entry(point=found.points[1])
    for number in range(1, 6):
        name = f"rates-f{number:03d}"
        settings = explore_settings(found.grid, winner, name)
        parameters = [axis.parameter for axis in found.grid.axes]
        before = tuple(str(one) for one in winner.point.settings.values())
        assert tuple(map(str, settings.values())) == explore(parameters, before, name)
        assert build_fork(found.grid, name, settings).name == name


def test_what_only_a_cluster_does_is_refused(write):
    with pytest.raises(SpecError, match=r"spec\.suspend"):
        planned(write(GRID), "suspend=true")


def test_a_run_that_could_not_be_is_named_before_anything_starts(write):
    with pytest.raises(SpecError, match="maxSteps"):
        planned(write(GRID.replace("maxSteps: 20", "maxSteps: -1")))


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "--over", "seed=0,1"),
        ("sweep", "--seeds", "2"),
        ("sweep", "--halve-at", "5"),
        ("sweep", "--forks", "1"),
    ],
)
def test_options_that_say_the_same_are_refused_beside_it(write, monkeypatch, capsys, words):
    code, err = call(monkeypatch, capsys, *words, "-f", str(write(GRID)), "--dry-run")
    assert code == 2
    assert f"{words[1]}: a RolloutSweep says it itself" in err


def test_rollout_run_says_which_command_runs_it(write, monkeypatch, capsys):
    code, err = call(monkeypatch, capsys, "run", "-f", str(write(GRID)))
    assert code == 2
    assert "rollout sweep -f" in err


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["rollout", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err
