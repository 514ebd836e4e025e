"""What a run's folder says of its usage: the lives in its ledger, and what was made in that time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout.costs.usage import Lifetime, RunUsage
from rollout.errors import LedgerError, SpecError
from rollout.ledger.sql.lives import read_attempt_seconds, read_lives
from rollout.ledger.views import LifeView, StepView
from rollout.report.gather import open_ledger, read_config

LOST = ("infrastructure", "lost", "expired")
"""Ends of attempts that came to nothing by no fault of the policy: failures, dead workers, leases that ran out."""

TIME_MS_MAX = 32_503_680_000_000
"""The year 3000: no process of ours lives to it."""

UNNOTED = (
    "its ledger was written by a version of rollout that did not note when its processes lived"
)


def read_usage(folder: Path) -> RunUsage:
    """What a run used. Raises LedgerError for what is no readable run."""
    run = _read_identity(folder)
    with open_ledger(folder) as ledger:
        with ledger.snapshot() as tx:
            lives, seconds = read_lives(tx, ledger.have), read_attempt_seconds(tx)
        steps = ledger.steps()
    return RunUsage(
        run=folder.name,
        uid=run["uid"],
        namespace=run["namespace"],
        stays=None if lives is None else tuple(map(_stay, lives)),
        why=UNNOTED if lives is None else "",
        samples=sum(step.num_consumed for step in steps),
        tokens=sum(int(step.metrics.get("num_tokens", 0)) for step in steps),
        waited=_waited(steps),
        lost=_share(sum(seconds.get(one, 0.0) for one in LOST), sum(seconds.values())),
    )


def read_usages(folders: Sequence[Path]) -> tuple[RunUsage, ...]:
    """The same of several; one that cannot be read has no stays and says why."""
    found = []
    for folder in folders:
        try:
            found.append(read_usage(folder))
        except (LedgerError, SpecError) as error:
            found.append(RunUsage(run=folder.name, uid="", stays=None, why=str(error)))
    return tuple(found)


def read_with_neighbours(folder: Path) -> tuple[RunUsage, ...]:
    """A run, first, and those beside it, of whom some may have shared its machine. Raises LedgerError for the run itself."""
    beside = [one for one in find_folders(folder.parent) if one != folder]
    return (read_usage(folder), *read_usages(beside))


def find_folders(home: Path) -> list[Path]:
    """The folders of runs in a home, by name."""
    return sorted(path.parent for path in home.glob("*/worker.json"))


def _read_identity(folder: Path) -> Mapping[str, Any]:
    return {"uid": "", "namespace": "default", **read_config(folder)["run"]}


def _stay(life: LifeView) -> Lifetime:
    span = (life.began_ms, life.heard_ms)
    if not 0 <= span[0] <= span[1] <= TIME_MS_MAX:
        raise LedgerError(
            f"the ledger's lives: {life.worker} from {span[0]} to {span[1]} ms since 1970 is no time of a process"
        )
    return Lifetime(worker=life.worker, role=life.role, span=span, place=life.place)


def _waited(steps: Sequence[StepView]) -> float | None:
    """The learner's: of the seconds of its steps those in which it waited for a batch."""
    whole = sum(sum(step.phase_seconds.values()) for step in steps)
    return _share(sum(step.phase_seconds.get("wait", 0.0) for step in steps), whole)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
