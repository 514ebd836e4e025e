"""What must be so after a run that something happened to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "ledger"))

from books import check_closed_books
from local_jobs import Job

from rollout.protocol.status import Status, Waiting


def check_same(job: Job, result: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    """In Exact: everything is as it would have been, and the books are in order."""
    assert result["step"] == undisturbed["step"]
    assert result["chain"] == undisturbed["chain"]
    assert result["dispositions"] == undisturbed["dispositions"]
    assert accuracies(result) == accuracies(undisturbed)
    check_ledger(job)


def check_ledger(job: Job, staleness_max: int = 0) -> None:
    """Every admitted sample has one end, of a lease nobody had taken over, and none was too old."""
    file = job.run_dir / "ledger.db"
    if file.exists():
        assert check_closed_books(file, staleness_max) == []


def accuracies(result: dict[str, Any]) -> list[tuple[str, int, float]]:
    """Every evaluation's result."""
    return sorted(
        (one["name"], one["step"], one["metrics"]["accuracy"]["value"])
        for one in result["evaluations"]
    )


def find_wait(status: Status, who: str) -> Waiting | None:
    """What ``who`` waits for, as the status tells it."""
    return next((one for one in status.waiting if one.who == who), None)


def blames(status: Status, who: str, *words: str) -> bool:
    """Whether the status says that ``who`` waits, and names all of this as the culprit."""
    wait = find_wait(status, who)
    return wait is not None and all(word in wait.culprit for word in words)
