"""What the pages show is run for a step or two: the tutorial's run and pipeline, own rewards, own data."""

import json
import os
from pathlib import Path

import pytest
from docs_kit import ROOT, blocks, commands, say, write_files

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

TUTORIAL = ROOT / "docs" / "tutorial" / "first-run.md"
HOW_TO = ROOT / "docs" / "how-to"
FEW = ("--set", "train.maxSteps=2")


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


@pytest.mark.slow
def test_the_pipeline_of_the_tutorial_runs(tutorial):
    """Quick: rollout/supervisor/test_a_pipeline_feeds_its_next_run.py; that it is valid: test_pages_say_what_is_so.py."""
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


@pytest.mark.slow
def test_preferences_are_learned_from_as_shown(tmp_path):
    """Quick: rollout/supervisor/test_every_preference_sample_runs.py; that it is valid: test_pages_say_what_is_so.py."""
    page = HOW_TO / "learn-from-preferences.md"
    folder = write_files(page, tmp_path)
    for words in shown(page, "train"):
        say(*words, *FEW, folder=folder)

    result = json.loads((folder / "runs" / "prefer-1" / "result.json").read_text())
    assert (result["exit_code"], result["step"]) == (0, 2)


def test_rows_held_out_of_ones_own_data_are_evaluated(tmp_path):
    folder = write_files(HOW_TO / "bring-your-own-data.md", tmp_path)
    say("run", "-f", "held-out.yaml", *FEW, folder=folder)

    [told] = json.loads(say("runs", "show", "held-out", "--output", "json", folder=folder))[
        "evaluations"
    ]

    assert (told["name"], told["num_prompts"]) == ("capitals", 2)


def shown(page: Path, *first: str) -> list[list[str]]:
    """The commands of a page that begin with these words."""
    return [
        words for where, words in commands() if where == page and words[: len(first)] == [*first]
    ]


def test_a_run_can_be_looked_into_as_shown(tutorial):
    page = HOW_TO / "look-inside-a-run.md"

    for words in [*shown(page, "runs"), *shown(page, "debug")]:
        if "last-night" in words:
            continue  # test_the_recipe_for_a_failed_run_is_run.py
        assert say(*words, folder=tutorial), words

    told = say("debug", "rollout-only", "first", "--step", "2", folder=tutorial)
    assert "are the recorded ones, token for token" in told
    assert "traceEvents" in (tutorial / "first-trace.json").read_text()[:2000]


def test_samples_and_metrics_are_exported_as_shown(tutorial):
    page = HOW_TO / "export-samples.md"
    for words in shown(page, "runs", "export"):
        say(*words, folder=tutorial)

    code = "import os; os.chdir(folder)\n"
    [block] = [block for block in blocks("python") if block.page == page]
    scope: dict = {"folder": tutorial}
    here = Path.cwd()
    try:
        exec(code + block.text, scope)
    finally:
        os.chdir(here)

    assert set(scope["samples"]["step"]) == {1, 2}
    assert (tutorial / "exported" / "metrics.jsonl").read_text().count("\n") == 2


@pytest.mark.slow
def test_the_sweep_shown_runs_and_its_points_are_compared(tmp_path):
    page = HOW_TO / "compare-runs.md"
    folder = write_files(page, tmp_path)
    dry, real, *_ = shown(page, "sweep")
    few = (*FEW, "--set", "evaluations[0].maxPrompts=20")

    assert "swept-learningrate-1e-4-seed-0" in say(*dry, folder=folder)
    told = say(*[word for word in real if word not in {"--seeds", "2"}], *few, folder=folder)

    assert "ranked by choose/selection/accuracy" in told
    names = ["swept-learningrate-1e-4", "swept-learningrate-3e-4"]
    again = say("runs", "compare", *names, "--page", "both.html", folder=folder)
    assert "0.0001" in again
    assert "2 runs compared" in (folder / "both.html").read_text()


def test_a_mixture_of_experts_is_trained_as_shown(tmp_path):
    folder = write_files(HOW_TO / "train-a-mixture-of-experts.md", tmp_path)

    planned = say("plan", "-f", "experts.yaml", *FEW, folder=folder)
    ended = say("run", "-f", "experts.yaml", *FEW, folder=folder)

    assert "routeBytesPerToken" in planned
    assert "Succeeded (2 steps committed)" in ended
