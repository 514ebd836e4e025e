"""The runs of a folder: a page of the list, and how one run stands. Reads only; one ledger is open at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.errors import RolloutError, SpecError
from rollout.ledger.views import EventView
from rollout.report.data import ReportInput
from rollout.report.gather import (
    describe_algorithm,
    describe_model,
    gather,
    open_ledger,
    read_config,
)
from rollout.runs.run_dir import RunDir, find_owner

PAGE_ROWS = 50
EVENTS_MAX = 100
CONFIG = "worker.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run of the list. ``said`` is why it cannot be read; then the rest is empty."""

    name: str
    state: str
    created_at: float | None = None
    algorithm: str = ""
    model: str = ""
    step: int | None = None
    max_steps: int | None = None
    reward: float | None = None
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A page of the list: ``number`` of all runs whose name has the filter in it."""

    lines: tuple[RunLine, ...]
    number: int
    page: int
    num_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One run. ``live``: its processes are there."""

    name: str
    state: str
    live: bool
    data: ReportInput
    events: tuple[EventView, ...]
    position: int
    max_steps: int | None


def find_folder(home: Path, name: str) -> Path:
    """A run's folder by its folder's name. Raises SpecError for any other name."""
    plain = name == Path(name).name and not name.startswith(".")
    if not plain or not (home / name / CONFIG).is_file():
        raise SpecError(f"there is no run {name!r} in {home}: choose one of the list of runs")
    return home / name


def list_runs(home: Path, *, wanted: str = "", page: int = 1, by_name: bool = False) -> Listing:
    """A page of the runs, the newest first; only the ledgers of this page are opened."""
    found = [
        (entry.stat().st_mtime, entry.parent.name)
        for entry in home.glob(f"*/{CONFIG}")
        if wanted.lower() in entry.parent.name.lower() and not entry.parent.name.startswith(".")
    ]
    names = [name for _, name in (sorted(found, key=_name_of) if by_name else sorted(found)[::-1])]
    pages = max(1, -(-len(names) // PAGE_ROWS))
    page = min(max(1, page), pages)
    shown = names[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    lines = tuple(_line(home / name) for name in shown)
    return Listing(lines=lines, number=len(names), page=page, num_pages=pages)


def _name_of(entry: tuple[float, str]) -> str:
    return entry[1]


def _line(folder: Path) -> RunLine:
    try:
        return _read_line(folder)
    except RolloutError as error:
        return RunLine(name=folder.name, state=_beginning(folder), said=str(error))


def _beginning(folder: Path) -> str:
    """The state of a run whose ledger cannot be read: it may be about to make one."""
    return "Starting" if find_owner(RunDir(path=folder)) is not None else "Unreadable"


def _read_line(folder: Path) -> RunLine:
    spec = read_config(folder)["spec"]
    with open_ledger(folder) as ledger:
        run = ledger.run()
        last = ledger.steps(after=run.step - 1, limit=1) if run.step else ()
    return RunLine(
        name=folder.name,
        state=judge_state(run.outcome, live=find_owner(RunDir(path=folder)) is not None),
        created_at=run.created_at,
        algorithm=describe_algorithm(spec),
        model=describe_model(spec),
        step=run.step,
        max_steps=read_max_steps(spec),
        reward=last[0].metrics.get("reward") if last else None,
    )


def judge_state(outcome: Mapping[str, Any] | None, *, live: bool) -> str:
    """One word: how it ended, or whether anybody works on it."""
    if outcome is not None:
        return str(outcome["kind"])
    return "Running" if live else "Interrupted"


def read_max_steps(spec: Mapping[str, Any]) -> int | None:
    """How many steps a run is to have; None where it has none, or does not say."""
    found = (spec.get("train") or {}).get("maxSteps")
    return found if isinstance(found, int) else None


def read_overview(folder: Path) -> Overview:
    """What the page of a run shows. Raises LedgerError."""
    live = find_owner(RunDir(path=folder)) is not None
    data = gather(folder, whole=False)
    with open_ledger(folder) as ledger:
        run, events = ledger.run(), ledger.events(EVENTS_MAX)
    return Overview(
        name=folder.name,
        state=judge_state(run.outcome, live=live),
        live=live,
        data=data,
        events=events[::-1],
        position=run.position,
        max_steps=read_max_steps(data.spec),
    )


def read_mark(folder: Path) -> tuple[int, str]:
    """What changes whenever a run has moved: the ledger's position, and its state."""
    live = find_owner(RunDir(path=folder)) is not None
    with open_ledger(folder) as ledger:
        run = ledger.run()
    return run.position, judge_state(run.outcome, live=live)
