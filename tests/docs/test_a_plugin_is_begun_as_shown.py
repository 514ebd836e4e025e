"""The page on plugins, followed: what it shows is what `new` writes, its commands run, and its manifest is played; so is that of rows."""

import json
from pathlib import Path

import pytest
from docs_kit import ROOT, blocks, named_files
from ruamel.yaml import YAML
from typer.testing import CliRunner

from rollout.cli.main import app

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_starts")]
PAGE = ROOT / "docs" / "how-to" / "write-a-plugin.md"
ROWS = ROOT / "docs" / "how-to" / "bring-your-own-data.md"


def shown(language, page=PAGE):
    return [one.text for one in blocks(language) if one.page == page]


def called(*words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def test_the_page_is_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands, reloading = shown("sh")
    for line in commands.splitlines():
        if line.startswith("rollout "):
            called(*line.split()[1:])
    manifest, run, *contained = shown("yaml")
    written = YAML(typ="safe").load(Path("plugins/polite/plugin.yaml").read_text())
    assert YAML(typ="safe").load(manifest).items() <= written.items()

    (code,) = shown("python")
    Path("plugins/polite/plugin.py").write_text(code)
    Path("rows.jsonl").write_text('{"prompt": "Ask for tea."}\n' * 8)
    Path("run.yaml").write_text(run)
    for number, text in enumerate(contained):
        Path(f"contained-{number}.yaml").write_text(text)
        called("validate", "-f", f"contained-{number}.yaml")
    called("plugins", "test", "plugins/polite")
    called("run", "-f", "run.yaml")
    fast = Path("run.yaml").read_text().replace("spec:\n", "spec:\n  numerics: {mode: Fast}\n", 1)
    Path("run.yaml").write_text(fast)
    called(*reloading.split()[1:])


def test_rows_come_from_a_program_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("drinks.yaml").write_text(named_files(ROWS)["drinks.yaml"])
    begun, run = (one for one in shown("sh", ROWS) if "drinks" in one)
    for line in begun.splitlines():
        if line.startswith("rollout "):
            called(*line.split()[1:])
    (code,) = shown("python", ROWS)
    assert Path("plugins/drinks/plugin.py").read_text() == code
    called("plugins", "show", "plugins/drinks")
    called("plugins", "lock", "plugins")

    for line in run.splitlines():
        called(*line.split()[1:])
    (done,) = Path("runs").glob("drinks-*/result.json")
    assert json.loads(done.read_text())["step"] == 4
