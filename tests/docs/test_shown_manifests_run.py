"""What the pages show is run for a step or two: the tutorial's run and pipeline, own rewards, own data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docs_kit import ROOT, commands, write_files

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

TUTORIAL = ROOT / "docs" / "tutorial" / "first-run.md"
HOW_TO = ROOT / "docs" / "how-to"
FEW = ("--set", "train.maxSteps=2")


def say(*words: str, folder: Path) -> str:
    """Standard output of ``rollout WORDS`` in ``folder``; fails with what it said when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", "from rollout.cli.main import main; main()", *words],
        cwd=folder,
        env={**os.environ, "ROLLOUT_HOME": str(folder / "runs"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory) -> Path:
    """The tutorial's folder after its first run, cut to two steps."""
    folder = write_files(TUTORIAL, tmp_path_factory.mktemp("tutorial"))
    few = (*FEW, "--set", "evaluations[0].maxPrompts=20")
    assert "report.html" in say("run", "-f", "first.yaml", *few, folder=folder)
    return folder


def test_every_question_of_the_tutorial_is_answered(tutorial):
    asked = [
        words for page, words in commands() if page == TUTORIAL and words[0] in {"runs", "logs"}
    ]
    mine = [words for words in asked if not {"first-1", "first-2"} & set(words)]

    for words in mine:
        assert say(*["2" if word == "200" else word for word in words], folder=tutorial)
    assert {words[1] for words in mine} == {"list", "show", "samples", "report", "tail"}


def test_a_sample_can_be_traced_from_prompt_to_snapshot(tutorial):
    rows = json.loads(
        say("runs", "samples", "first", "--step", "2", "--output", "json", folder=tutorial)
    )

    told = say("runs", "trace", "first", rows[0]["id"][7:19], folder=tutorial)

    assert "consumed by step 2 of lineage 0" in told
    assert "step-000002" in told


def test_the_pipeline_of_the_tutorial_runs(tutorial):
    say("run", "-f", "pipeline.yaml", *FEW, folder=tutorial)

    names = {path.name for path in (tutorial / "runs").iterdir()}
    assert {"sums-sft-1", "sums-grpo-1"} <= names


def test_rewards_of_ones_own_are_summed_by_weight(tmp_path):
    folder = write_files(HOW_TO / "write-a-reward.md", tmp_path)
    say("run", "-f", "digits.yaml", *FEW, folder=folder)

    rows = json.loads(
        say("runs", "samples", "digits", "--step", "2", "--output", "json", folder=folder)
    )

    for row in rows:
        total = row["reward/digits_right"] + 0.1 * row["reward/brevity"]
        assert row["reward"] == pytest.approx(total)


def test_rows_held_out_of_ones_own_data_are_evaluated(tmp_path):
    folder = write_files(HOW_TO / "bring-your-own-data.md", tmp_path)
    say("run", "-f", "held-out.yaml", *FEW, folder=folder)

    [told] = json.loads(say("runs", "show", "held-out", "--output", "json", folder=folder))[
        "evaluations"
    ]

    assert (told["name"], told["num_prompts"]) == ("capitals", 2)
