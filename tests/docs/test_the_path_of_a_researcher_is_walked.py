"""The page for researchers is followed from its first command to its last; each prints what the page shows."""

from __future__ import annotations

import json

import pytest
from docs_kit import ROOT, write_files
from followed_pages import follow
from typed_here import typist

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "paths" / "researcher.md"


def test_a_run_is_checked_interrupted_gone_on_with_repeated_and_taken_home(tmp_path):
    folder = write_files(PAGE, tmp_path)

    follow(PAGE, typist(folder, {"ROLLOUT_HOME": str(folder / "runs")}))

    results = [json.loads(path.read_text()) for path in folder.glob("runs/mine-*/result.json")]
    assert len(results) == 2
    assert len({result["chain"] for result in results}) == 1
    assert (folder / "my-model" / "model.safetensors").is_file()
