"""Which points of a sweep lose while they run: what each has reported, read from its folder, held to the rule of ``rollout_api``.

The rule is the one that a RolloutSweep goes by. Here every step can be read, so that a point is compared by what it had
at the rung itself. Decides; stops nobody.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rollout.errors import SpecError
from rollout.runs.prepare import prepare_run
from rollout.runs.run_dir import RunDir
from rollout.supervisor.sweeps.points import Point
from rollout_api.checks.sweeps.sweep import check_objective
from rollout_api.sweeps.halving import HalvingRule, Loser, find_losers, find_winner, rung_of

Metric = Literal["RewardMean", "BestEvaluation"]
READ_BYTES_MAX = 1 << 24
"""Of a file of metrics at one look; a line is far shorter."""
STEP_MAX = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """By which rule points lose, and by what they are compared: the reward of a step, or the best value of the evaluation that selects."""

    rule: HalvingRule
    metric: Metric


def require_objective(points: Sequence[Point], metric: Metric) -> None:
    """Raises SpecError for the first point that reports nothing to be compared by."""
    for point in points:
        spec = prepare_run(point.document).spec
        if spec.train is None:
            raise SpecError("--halve-at: the manifest trains nothing, so no point has steps")
        for problem in check_objective(spec, metric, stops_early=True):
            raise SpecError(
                f"--halve-by {metric}: point {point.name}: {problem.message}; {problem.fix}"
            )


class Reports:
    """What one run has had at each rung past a step. Reads what its file of metrics has grown by since the last look.

    ``step`` and ``value`` are the last that it told; None before, and of a value that is no finite number.
    """

    def __init__(self, run: Path, halving: Halving, past: int = 0) -> None:
        self._run, self._halving, self._past = run, halving, past
        self._offset = 0
        self.rungs: dict[int, float] = {}
        self.step: int | None = None
        self.value: float | None = None

    def read(self) -> Mapping[int, float]:
        """Its finite value at each rung that it has reached."""
        lines = list(self._new_lines())
        best = self._best() if lines and self._halving.metric == "BestEvaluation" else None
        for line in lines:
            self._take(parse_step(line), best)
        return self.rungs

    def _new_lines(self) -> Iterator[bytes]:
        """Whole lines: what is half-written is read when it is whole, or cut off by whoever writes it."""
        try:
            with (self._run / "metrics.jsonl").open("rb") as file:
                self._offset = min(self._offset, file.seek(0, 2))
                file.seek(self._offset)
                found = file.read(READ_BYTES_MAX)
        except FileNotFoundError:
            return
        whole = found[: found.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from whole.splitlines()

    def _take(self, said: tuple[int, float | None] | None, best: float | None) -> None:
        if said is None:
            return
        step, reward = said
        value = best if self._halving.metric == "BestEvaluation" else reward
        self.step, self.value = step, value
        rung = rung_of(self._halving.rule, step)
        if rung is not None and value is not None and rung > max(self.rungs, default=self._past):
            self.rungs[rung] = value

    def _best(self) -> float | None:
        try:
            found = json.loads((self._run / "snapshots" / "Best.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None  # none is chosen yet
        return _finite(found.get("value")) if isinstance(found, dict) else None


def parse_step(line: bytes) -> tuple[int, float | None] | None:
    """The step of a line of metrics, with its mean reward where that is a finite number; None for what is no such line."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    step = found.get("step") if isinstance(found, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= STEP_MAX:
        return None
    return step, _finite(found.get("reward"))


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < STEP_MAX**2 and math.isfinite(value) else None


class PointsComparer:
    """Remembers what each point has reported. ``past``: of forks, the step past which each is compared."""

    def __init__(self, halving: Halving) -> None:
        self.halving = halving
        self.past: dict[str, int] = {}
        self._reports: dict[str, Reports] = {}

    def look(self, runs: Mapping[str, RunDir], at_work: Iterable[str]) -> tuple[Loser, ...]:
        """Of the points ``at_work`` those that lose. ``runs``: the folder of each point that has one, over or not."""
        seen = {name: self._report(name, run).read() for name, run in runs.items()}
        return find_losers(self.halving.rule, seen, at_work)

    def find_winner(self, at_work: Iterable[str], step: int) -> str | None:
        """Of the points ``at_work`` the best at a rung, by what was seen at the last look."""
        seen = {name: report.rungs for name, report in self._reports.items()}
        return find_winner(seen, at_work, step)

    def rungs(self, name: str) -> Mapping[int, float]:
        """What a point had at each rung, as last seen."""
        report = self._reports.get(name)
        return {} if report is None else report.rungs

    def last(self, name: str) -> tuple[int | None, float | None]:
        """Step and value that a point has told last."""
        report = self._reports.get(name)
        return (None, None) if report is None else (report.step, report.value)

    def _report(self, name: str, run: RunDir) -> Reports:
        if name not in self._reports:
            self._reports[name] = Reports(run.path, self.halving, self.past.get(name, 0))
        return self._reports[name]
