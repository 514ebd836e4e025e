"""A run whose environment and reward are plugins: planned with their digests, played, scored, and held to them."""

import json
from pathlib import Path

import psutil
import pytest
from plugin_kit import write
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import SpecError
from rollout.plugins.sidecar.manifest import folder_digest, read_plugin
from rollout.plugins.sidecar.named import require_planned_plugins
from rollout_api.checks import check_spec
from rollout_api.checks.facts import Facts
from rollout_api.v1alpha1.run import RolloutRunSpec

pytestmark = pytest.mark.process

GAME = """
    class Polite:
        def __init__(self, row):
            self.row, self.tries = row, 0
        def start(self):
            return self.row["prompt"]
        def step(self, reply):
            self.tries += 1
            return "Say please.", self.tries == 2
    serve(environment=Polite)
"""
SCORE = """
    def score(prompts, completions, rows, word="a"):
        return [{"said": float(word in one.text)} for one in completions]
    serve(reward=score)
"""
RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "plugged"},
    "spec": {
        "model": {"uri": "rollout://tiny-agent"},
        "code": {"path": "code"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "sampling": {"maxNewTokens": 6},
            "data": {"jsonl": {"uri": "rows.jsonl"}},
            "environment": {"plugin": {"path": "game"}},
            "rewards": [
                {"plugin": {"path": "marks", "parameters": [{"name": "word", "value": "e"}]}}
            ],
            "maxSteps": 2,
        },
        "evaluations": [
            {
                "name": "asked",
                "suite": {"data": {"jsonl": {"uri": "asked.jsonl"}}},
                "maxNewTokens": 6,
            }
        ],
    },
}


def changed(**train):
    return {**RUN, "spec": {**RUN["spec"], "train": {**RUN["spec"]["train"], **train}}}


@pytest.fixture
def place(tmp_path, monkeypatch):
    write(tmp_path / "code" / "game", GAME, kind="environment")
    write(tmp_path / "code" / "marks", SCORE, parameters=[{"name": "word", "default": "a"}])
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Ask for tea.", "answer": ""}\n' * 4)
    (tmp_path / "asked.jsonl").write_text('{"prompt": "Ask for more.", "answer": ""}\n' * 2)
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def keepers(folder):
    found = []
    for one in psutil.process_iter(["cmdline", "cwd"]):
        line = " ".join(one.info["cmdline"] or ())
        if "keeper.py" in line and str(folder) in str(one.info["cwd"]):
            found.append(line)
    return found


@pytest.mark.usefixtures("warm_starts")
def test_a_run_is_planned_played_and_scored_and_leaves_no_process(place):
    planned = json.loads(called("plan", "-f", "run.yaml", "--output", "json").stdout)
    digests = planned["runs"][0]["resolved"]["pluginDigests"]
    assert digests == {name: folder_digest(place / "code" / name) for name in ("game", "marks")}

    done = called("run", "-f", "run.yaml", "--run-dir", place / "done")
    assert done.exit_code == 0, done.output
    shown = called("runs", "samples", place / "done", "--step", "1", "--output", "json")
    samples = json.loads(shown.stdout)
    assert "marks/said" in shown.stdout
    assert samples
    assert not keepers(place)

    (place / "code" / "marks" / "plugin.py").write_text("serve = None\n")
    again = called(
        *("run", "-f", "run.yaml", "--run-dir", place / "done"),
        *("--resume", "Latest", "--set", "train.maxSteps=3"),
    )
    assert again.exit_code != 0
    assert "plugin marks" in str(again.exception)


def spec_of(document):
    return RolloutRunSpec.model_validate(document["spec"])


def problems(document, platform="local"):
    return {
        (one.field, one.reason) for one in check_spec(spec_of(document), Facts(platform=platform))
    }


def test_files_that_have_changed_are_refused_by_the_actor(place):
    folders = [place / "code"]
    planned = {name: folder_digest(place / "code" / name) for name in ("game", "marks")}
    assert require_planned_plugins(planned, spec_of(RUN), folders) is None

    (place / "code" / "game" / "words.txt").write_text("please")
    with pytest.raises(SpecError, match="plugin game: its files have changed since the run began"):
        require_planned_plugins(planned, spec_of(RUN), folders)


def test_a_cluster_runs_no_plugins_folder():
    fields = {"spec.train.environment.plugin.path", "spec.train.rewards[0].plugin.path"}
    assert {(one, "NotSupported") for one in fields} <= problems(RUN, "cluster")


def test_a_plugin_lies_in_the_runs_code_and_its_rows_in_the_data():
    without = {**RUN, "spec": {name: one for name, one in RUN["spec"].items() if name != "code"}}
    assert ("spec.train.rewards[0].plugin.path", "MissingCode") in problems(without)
    assert ("spec.train.data", "MissingData") in problems(changed(data=None))
    assert not problems(RUN)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ({"environment": {"plugin": {"path": "marks"}}}, "is of kind reward, not environment"),
        ({"environment": {"plugin": {"path": "nowhere"}}}, "there is no plugin.yaml in 'nowhere'"),
        ({"environment": {"plugin": {"path": "../code/game"}}}, "without .."),
        (
            {
                "rewards": [
                    {"plugin": {"path": "marks", "parameters": [{"name": "x", "value": ""}]}}
                ]
            },
            "unknown parameter 'x'; it takes word",
        ),
    ],
)
@pytest.mark.usefixtures("warm_starts")
def test_what_is_wrong_is_named_before_anything_is_spent(train, says, place):
    (place / "run.yaml").write_text(json.dumps(changed(**train)))
    done = called("plan", "-f", "run.yaml")

    assert isinstance(done.exception, SpecError)
    assert says in str(done.exception)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"contract": 3}, "rollout speaks versions 1 to 2, got 3"),
        ({"kind": "game"}, "Invalid enum value 'game'"),
        ({"kind": "algorithm"}, "kind algorithm does not run as a plugin: it computes with"),
        ({"kind": "renderer"}, "kind renderer does not run as a plugin: tokens have to be"),
        ({"kind": "store"}, "kind store does not run as a plugin: each weight version"),
        ({"kind": ["reward"]}, "Expected `str`, got `array`"),
        ({"name": "A b"}, "small letters"),
        ({"command": []}, "a program and its arguments"),
        ({"concurrency": 0}, "concurrency: expected 1 to 256"),
        ({"startSeconds": 0}, "startSeconds: expected above 0"),
        ({"memoryMib": 1}, "memoryMib: expected at least 32"),
        ({"gpu": 1}, "unknown field `gpu`"),
        ({"egress": ["example.org"]}, "egress: a plugin has no network rules of its own"),
        ({"network": None}, "network: a plugin has no network rules of its own"),
        ({"parameters": [{"name": "a"}, {"name": "a"}]}, "a name of its own"),
    ],
)
def test_a_wrong_plugin_yaml_is_named(change, says, tmp_path):
    folder = write(tmp_path / "plugin", SCORE)
    manifest = json.loads((folder / "plugin.yaml").read_text())
    (folder / "plugin.yaml").write_text(json.dumps({**manifest, **change}))

    with pytest.raises(SpecError, match=r"plugin\.yaml") as refused:
        read_plugin(folder)
    assert says in str(refused.value)


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_part_of_the_digest(tmp_path):
    folder = write(tmp_path / "plugin", SCORE)
    before = folder_digest(folder)
    Path(folder / "again.py").symlink_to("plugin.py")
    assert folder_digest(folder) != before
    Path(folder / "out").symlink_to("/etc")

    with pytest.raises(SpecError, match="leads out of the plugin's folder"):
        folder_digest(folder)


def test_a_folder_without_plugin_yaml_is_no_plugin(tmp_path):
    with pytest.raises(SpecError, match="is no plugin"):
        read_plugin(tmp_path)
