"""docs/how-to/write-an-environment.md#tools-of-an-mcp-server, followed: the server is played with, planned and run."""

import json

import pytest
from docs_kit import ROOT, named_files, say
from typer.testing import CliRunner

from rollout.cli.main import app

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("sandbox_host"),
]

PAGE = ROOT / "docs" / "how-to" / "write-an-environment.md"
CALL = '<tool_call>{"name": "shelf__find", "arguments": {"title": "Emma"}}</tool_call>'
GUESS = '<tool_call>{"name": "shelf__find", "arguments": {}}</tool_call>'


@pytest.fixture
def folder(tmp_path):
    for name in ("shelf_server.py", "books.yaml"):
        (tmp_path / name).write_text(named_files(PAGE)[name])
    return tmp_path


def test_a_person_calls_the_server(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["env", "try", "arithmetic", "--mcp-server", "shelf=python shelf_server.py"]
    done = CliRunner().invoke(app, words, input=f"{CALL}\n{GUESS}\n7\n")

    assert done.exit_code == 0, done.output
    assert "tool shelf__find(title)" in done.stdout
    assert "result shelf__find: shelf 4" in done.stdout
    assert "result shelf__find: error: wrong arguments: arguments: 'title' is a req" in done.stdout
    assert "ended stop (owner policy)" in done.stdout


def test_a_run_is_held_to_the_tools_that_were_planned(folder):
    planned = say("plan", "-f", "books.yaml", "--output", "json", folder=folder)
    say("run", "-f", "books.yaml", folder=folder)
    run = folder / "runs" / "books-1"
    told = json.loads((run / "worker.json").read_text())["resolved"]["toolDigests"]

    assert list(told) == ["shelf__find"]
    assert told["shelf__find"] in planned
    assert json.loads((run / "result.json").read_text())["exit_code"] == 0
