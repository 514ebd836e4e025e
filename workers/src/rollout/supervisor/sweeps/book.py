"""What is known of a sweep's points, and the file in its folder that it is kept in: ``sweep.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollout.common.atomic_files import replace_text
from rollout.errors import SpecError
from rollout.runs.run_dir import RunDir
from rollout.supervisor.sweeps.halving import Halving
from rollout.supervisor.sweeps.points import Point
from rollout.supervisor.watch import EXIT_FAILED, EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK

State = Literal["waiting", "running", "finished", "failed", "interrupted", "stopped"]


@dataclass(slots=True, kw_only=True)
class Entry:
    """One point and how it stands. ``skipped``: it had been finished, or stopped as a loser, before.

    ``rungs``: what it had at each rung of ``halving``.
    """

    point: Point
    state: State = "waiting"
    run: RunDir | None = None
    exit_code: int | None = None
    message: str = ""
    skipped: bool = False
    rungs: Mapping[int, float] = field(default_factory=dict)

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
            "rungs": [{"step": step, "value": value} for step, value in self.rungs.items()],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Where a sweep lives. ``parallel`` points run at a time; ``shows``: their output is shown, not logged.

    ``tell`` is given one line for whoever watches. ``halving`` None: every point goes to its end.
    """

    folder: Path
    home: Path
    parallel: int = 1
    shows: bool = False
    tell: Callable[[str], None] = lambda _line: None
    halving: Halving | None = None


def write_state(sweep: Sweep, entries: Sequence[Entry]) -> None:
    """Replace the book by what is known now."""
    document = {"points": [entry.describe() for entry in entries]}
    replace_text(sweep.folder / "sweep.json", json.dumps(document, indent=1, default=str))


def read_stopped(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Points that lost when this sweep ran before, by name. Raises SpecError."""
    path = sweep.folder / "sweep.json"
    try:
        points = json.loads(path.read_text())["points"]
        return {str(one["name"]): dict(one) for one in points if one["state"] == "stopped"}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"{path} cannot be read: {error}; remove it, and points that lost before go on"
        ) from error


def exit_code_of(entries: Sequence[Entry]) -> int:
    """0 when every point went to its end, 3 when a gate refused one, 1 when one failed, 130 interrupted."""
    if any(entry.state in {"waiting", "running", "interrupted"} for entry in entries):
        return EXIT_INTERRUPTED
    if any(entry.state == "failed" for entry in entries):
        return EXIT_FAILED
    return EXIT_GATE if any(entry.exit_code == EXIT_GATE for entry in entries) else EXIT_OK
