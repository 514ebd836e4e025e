"""A plan begins with what the manifest chose; of the defaults that filled the rest it says how many."""

import json

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app

MANIFEST = """\
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: arithmetic}
spec:
  preset: gspo@v1
  model: {uri: "rollout://tiny-adder"}
  train:
    algorithm: {grpo: {promptsPerStep: 32, groupSize: 8}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    maxSteps: 400
"""


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(MANIFEST)

    def ask(*options):
        done = CliRunner().invoke(app, ["plan", "-f", str(file), "--offline", *options])
        assert done.exit_code == 0, done.output
        return done.output

    return ask


def fields_under(text, title):
    block = text.partition(title)[2].split("\n\n")[0]
    return {line.split()[0] for line in block.splitlines()[1:] if line.strip()}


def test_what_was_chosen_stands_first_and_alone(plan):
    text = plan()
    assert fields_under(text, "Chosen in the manifest") == {
        "preset",
        "model.uri",
        "train.algorithm.grpo.promptsPerStep",
        "train.algorithm.grpo.groupSize",
        "train.environment.builtin.name",
        "train.rewards[0].builtin.name",
        "train.maxSteps",
    }
    assert text.index("Chosen in the manifest") < text.index("Batch")


def test_what_a_named_preset_gave_is_shown_and_defaults_are_counted(plan):
    text = plan()
    assert fields_under(text, "Filled in by gspo@v1")
    assert "train.sampling.topK" not in text
    assert "--all shows them" in text


def test_all_defaults_are_shown_when_asked_for(plan):
    text = plan("--all")
    filled = json.loads(plan("--output", "json"))["runs"][0]["filled"]
    shown = {line.split()[0] for line in text.splitlines() if line.startswith("    ")}
    assert {one["field"] for one in filled} <= shown
    assert "--all shows them" not in text


def test_the_devices_that_were_asked_about_are_shown_with_what_they_hold(plan):
    text = plan("--card", "24Gi", "--cards", "2")
    assert "device 0" in text
    assert "device 1" in text
    assert "longest sequence" in text
    assert "Accelerators" not in plan("--card", "0")
