"""docs/how-to/play-tasks-of-harbor.md, followed: the folder is laid out as shown and trained on.

Quick: rollout/environments/test_tasks_of_harbor_are_played.py.
"""

import json

import pytest
from docs_kit import ROOT, named_files, say

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("sandbox_host"),
]

PAGE = ROOT / "docs" / "how-to" / "play-tasks-of-harbor.md"
TASK = "tasks/twelve-and-thirty-four"
PLACES = {
    "task.toml": TASK,
    "instruction.md": TASK,
    "Dockerfile": f"{TASK}/environment",
    "test.sh": f"{TASK}/tests",
}


def test_a_run_trains_on_a_folder_of_tasks(tmp_path):
    for name, text in named_files(PAGE).items():
        place = tmp_path / PLACES.get(name, ".")
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)

    say("run", "-f", "harbor.yaml", folder=tmp_path)

    run = tmp_path / "runs" / "harbor-tasks-1"
    assert json.loads((run / "result.json").read_text())["exit_code"] == 0
    asked = ("runs", "samples", "harbor-tasks", "--step", "2", "--output", "json")
    rows = json.loads(say(*asked, folder=tmp_path))
    assert len(rows) == 4
    assert {row["reward/environment"] for row in rows} <= {0.0, 1.0}
    assert all(row["reward/environment/turns"] == 1 for row in rows)
