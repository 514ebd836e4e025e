"""docs/how-to/train-an-agent.md, followed: the agent is played by a person, judged, and trained."""

import json
import shlex

import pytest
from docs_kit import ROOT, commands, named_files, say
from typer.testing import CliRunner

from rollout.cli.main import app

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("sandbox_host"),
]

PAGE = ROOT / "docs" / "how-to" / "train-an-agent.md"


@pytest.fixture
def folder(tmp_path):
    for name, text in named_files(PAGE).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_person_is_the_model_that_the_agent_asks(folder, monkeypatch):
    monkeypatch.chdir(folder)
    [words] = [words for page, words in commands() if page == PAGE and words[0] == "env"]
    done = CliRunner().invoke(app, words, input="I do not know\n46\n")

    assert done.exit_code == 0, done.output
    assert "12+34=" in done.stdout
    assert "ended stop (owner policy)" in done.stdout
    assert "exit code 0" in done.stdout
    assert "reward 1" in done.stdout, shlex.join(done.stdout.splitlines())


def test_a_run_trains_on_what_the_agent_asked(folder):
    say("run", "-f", "clerk.yaml", folder=folder)
    run = folder / "runs" / "clerk-1"
    assert json.loads((run / "result.json").read_text())["exit_code"] == 0

    rows = json.loads(
        say("runs", "samples", "clerk", "--step", "2", "--output", "json", folder=folder)
    )
    assert len(rows) == 8
    assert {row["reward/environment"] for row in rows} <= {0.0, 1.0}
    assert all(row["reward/environment/turns"] >= 1 for row in rows)
