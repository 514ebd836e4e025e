"""How a run stands: in one word, and as a mark that changes whenever it has moved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.report.gather import open_ledger
from rollout.runs.run_dir import RunDir, find_owner

RESUMABLE = ("Stopped", "Interrupted")
"""States in which a run can be gone on with: it saved itself, or nobody works on it and it has no end."""


def judge_state(outcome: Mapping[str, Any] | None, *, live: bool) -> str:
    """One word: how it ended, or whether anybody works on it."""
    if outcome is not None:
        return str(outcome["kind"])
    return "Running" if live else "Interrupted"


def read_max_steps(spec: Mapping[str, Any]) -> int | None:
    """How many steps a run is to have; None where it has none, or does not say."""
    found = (spec.get("train") or {}).get("maxSteps")
    return found if isinstance(found, int) else None


def is_live(folder: Path) -> bool:
    """Whether processes of this run are there."""
    return find_owner(RunDir(path=folder)) is not None


def read_mark(folder: Path) -> tuple[int, str]:
    """What changes whenever a run has moved: the ledger's position, and its state."""
    live = is_live(folder)
    with open_ledger(folder) as ledger:
        run = ledger.run()
    return run.position, judge_state(run.outcome, live=live)
