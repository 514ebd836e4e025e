"""The page on plugins, followed: what it shows is what `new` writes, its commands run, and its manifest is played."""

from pathlib import Path

import pytest
from docs_kit import ROOT, blocks
from ruamel.yaml import YAML
from typer.testing import CliRunner

from rollout.cli.main import app

pytestmark = pytest.mark.process
PAGE = ROOT / "docs" / "how-to" / "write-a-plugin.md"


def shown(language):
    return [one.text for one in blocks(language) if one.page == PAGE]


def called(*words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def test_the_page_is_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (commands,) = shown("sh")
    for line in commands.splitlines():
        if line.startswith("rollout "):
            called(*line.split()[1:])
    manifest, run, contained = shown("yaml")
    written = YAML(typ="safe").load(Path("plugins/polite/plugin.yaml").read_text())
    assert YAML(typ="safe").load(manifest).items() <= written.items()

    (code,) = shown("python")
    Path("plugins/polite/plugin.py").write_text(code)
    Path("rows.jsonl").write_text('{"prompt": "Ask for tea."}\n' * 8)
    Path("run.yaml").write_text(run)
    Path("contained.yaml").write_text(contained)
    called("validate", "-f", "contained.yaml")
    called("plugins", "test", "plugins/polite")
    called("run", "-f", "run.yaml")
