"""The page on snapshots is followed from its first command to its last, in a shell, as it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from docs_kit import ROOT, blocks, write_files

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "how-to" / "take-snapshots.md"


def test_every_command_of_the_page_does_what_it_says(tmp_path):
    folder = write_files(PAGE, tmp_path)
    shown = [block.text for block in blocks("sh") if block.page == PAGE]
    rollout = (
        f'rollout() {{ {sys.executable} -c "from rollout.cli.main import main; main()" "$@"; }}\n'
    )
    end = "rollout snapshot list --run-id counting-1 > left.json\n"

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", rollout + "".join(shown) + end],
        cwd=folder,
        env={**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=800,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    chains = {
        path.parent.name: json.loads(path.read_text())["chain"]
        for path in folder.glob("runs/*/result.json")
    }
    assert sorted(chains) == [f"counting-{n}" for n in range(1, 5)]
    assert len(set(chains.values())) == 1
    left = json.loads((folder / "left.json").read_text())
    assert [(row["step"], row["label"]) for row in left] == [(6, ""), (3, "middle")]
    assert "1 removed, 2 kept" in done.stdout
