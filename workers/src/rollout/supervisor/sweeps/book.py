"""What is known of a sweep's points, and the file in its folder that it is kept in: ``sweep.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollout.common.atomic_files import replace_text
from rollout.errors import SpecError
from rollout.runs.run_dir import RunDir
from rollout.supervisor.sweeps.halving import Halving
from rollout.supervisor.sweeps.points import Grid, Point
from rollout.supervisor.watch import EXIT_FAILED, EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK

State = Literal["waiting", "running", "finished", "failed", "interrupted", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedFrom:
    """The point that a fork begins from. ``step``: what it had come to when that was decided; the fork is compared past it.

    ``uri``, ``digest``: of the snapshot of the run in ``run_dir`` that it begins with; empty until that is taken.
    """

    name: str
    step: int
    run_dir: str
    uri: str = ""
    digest: str = ""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One point and how it stands. ``skipped``: it had been finished, or stopped as a loser, before.

    ``rungs``: what it had at each rung of ``halving``, by which ``step`` and ``value`` are read, too: as last seen.
    ``forked_from``: None of a combination.
    """

    point: Point
    state: State = "waiting"
    run: RunDir | None = None
    exit_code: int | None = None
    message: str = ""
    skipped: bool = False
    rungs: Mapping[int, float] = field(default_factory=dict)
    step: int | None = None
    value: float | None = None
    forked_from: ForkedFrom | None = None

    def describe(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.point.name,
            "settings": dict(self.point.settings),
            "state": self.state,
            "run_dir": None if self.run is None else str(self.run.path),
            "exit_code": self.exit_code,
            "message": self.message,
            "skipped": self.skipped,
            "step": self.step,
            "value": self.value,
            "forked_from": None if self.forked_from is None else asdict(self.forked_from),
            "rungs": [{"step": step, "value": value} for step, value in self.rungs.items()],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Where a sweep lives. ``parallel`` points run at a time; ``shows``: their output is shown, not logged.

    ``tell`` is given one line for whoever watches. ``halving`` None: every point goes to its end. ``forks_max``: so many
    losers' places are taken by forks of winners, which are made of ``grid``.
    """

    folder: Path
    home: Path
    parallel: int = 1
    shows: bool = False
    tell: Callable[[str], None] = lambda _line: None
    halving: Halving | None = None
    grid: Grid | None = None
    forks_max: int = 0


def write_state(sweep: Sweep, entries: Sequence[Entry]) -> None:
    """Replace the book by what is known now."""
    document = {"points": [entry.describe() for entry in entries]}
    replace_text(sweep.folder / "sweep.json", json.dumps(document, indent=1, default=str))


def read_book(sweep: Sweep) -> list[dict[str, Any]]:
    """Points as an earlier life of this sweep has written them; none where there was no such life. Raises SpecError."""
    path = sweep.folder / "sweep.json"
    try:
        points = json.loads(path.read_text())["points"]
        return [{"name": one["name"], "state": one["state"], **one} for one in points]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise unreadable(sweep, error) from error


def unreadable(sweep: Sweep, error: Exception) -> SpecError:
    """Of a book that is damaged."""
    return SpecError(
        f"{sweep.folder / 'sweep.json'} cannot be read: {error}; remove it, and points that lost before go on"
    )


def read_stopped(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Points that lost when this sweep ran before, by name. Raises SpecError."""
    return {str(one["name"]): one for one in read_book(sweep) if one["state"] == "stopped"}


def exit_code_of(entries: Sequence[Entry]) -> int:
    """0 when every point went to its end, 3 when a gate refused one, 1 when one failed, 130 interrupted.

    A fork that could not begin is no failure: what it was to begin with is not there any more.
    """
    if any(entry.state in {"waiting", "running", "interrupted"} for entry in entries):
        return EXIT_INTERRUPTED
    if any(entry.state == "failed" and not _never_began(entry) for entry in entries):
        return EXIT_FAILED
    return EXIT_GATE if any(entry.exit_code == EXIT_GATE for entry in entries) else EXIT_OK


def _never_began(entry: Entry) -> bool:
    return entry.forked_from is not None and entry.exit_code is None
