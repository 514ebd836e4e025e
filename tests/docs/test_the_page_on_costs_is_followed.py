"""The page on costs is followed as written, with a run that lived two hours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from docs_kit import ROOT, blocks, write_files

from rollout.ledger.records import LifeNote, Limits, RunIdentity
from rollout.ledger.sqlite.ledger import SqliteLedger

PAGE = ROOT / "docs" / "how-to" / "what-a-run-costs.md"
SEPTEMBER_30 = datetime(2026, 9, 30, 23, tzinfo=UTC).timestamp()


async def live_two_hours(folder) -> None:
    now = [SEPTEMBER_30]
    identity = RunIdentity(uid="u", name="adder", spec_digest="blake3:" + "0" * 64)
    ledger = SqliteLedger(folder / "ledger.db", identity, Limits(), lambda: now[0])
    for minute in range(121):
        now[0] = SEPTEMBER_30 + 60.0 * minute
        note = LifeNote(worker="learner", incarnation=1, role="learner", place={"machine": "desk"})
        await ledger.note_lives([note])
    await ledger.close()


@pytest.mark.process
def test_every_command_of_the_page_answers(tmp_path):
    folder = write_files(PAGE, tmp_path)
    run = folder / "runs" / "adder"
    run.mkdir(parents=True)
    (run / "worker.json").write_text(json.dumps({"spec": {}, "run": {"uid": "u"}}))
    asyncio.run(live_two_hours(run))
    shown = "".join(
        block.text
        for block in blocks("sh")
        if block.page == PAGE and "grpo --cluster" not in block.text
    )
    rollout = (
        f'rollout() {{ {sys.executable} -c "from rollout.cli.main import main; main()" "$@"; }}\n'
    )
    ends = "rollout cost --by month --output json > months.json\n"

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", rollout + shown + ends],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "ROLLOUT_HOME"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert "adder  0.82 EUR" in done.stdout
    months = json.loads((folder / "months.json").read_text())
    assert [(row["key"], row["cost"]) for row in months["rows"]] == [
        ("2026-09", "0.410000"),
        ("2026-10", "0.410000"),
    ]
    assert months["total"]["cost"] == "0.820000"
