"""What supervisor, coordinator, ledger and hashing add to a step: real runs against their own work.

A step's wall is from commit to commit. Taken off are training (``train`` of the ledger's
``phase_seconds``) and sampling (``generate`` and ``score`` of the trajectories; the load of the version
comes before both and is overhead). All of these are clocks of one run, so that a machine that
drifts does not enter. The same steps are then taken in one process without any of that, with equal
chain values as proof, and the two ways of measuring are shown side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from duel import Player, Side
from figures import Figure, level
from real_run import StepTimes, run_to_end, step_times

WORK = ("generate", "score", "train")


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Per step, over all runs: seconds of a real run and of the same step in one process."""

    wall: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)
    against: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    equal: list[float] = field(default_factory=list)

    def add(self, times: Sequence[StepTimes], alone: Sequence[dict]) -> None:
        """One real run and its steps taken again, from the second one on."""
        for one, again in zip(times, alone, strict=True):
            work = sum(again["phases"][name] for name in WORK)
            inside = one.train + one.sampled
            self.wall.append(one.wall)
            self.overhead.append(one.wall - inside)
            self.against.append(one.wall - work)
            self.work.append(inside)
            self.alone.append(work)
            self.equal.append(float(one.chain == again["chain"]))


def compare(manifest: Path, folder: Path, steps: int, rounds: int) -> Comparison:
    """``rounds`` times: a real run of ``steps`` steps, then the same in one process."""
    found = Comparison()
    for index in range(rounds):
        run = run_to_end(manifest, folder / f"run-{index}", f"train.maxSteps={steps}")
        times = step_times(run)
        side = Side(script="our_side.py", arguments=(str(run.worker_config),))
        player = Player(side, folder / f"alone-{index}.log")
        try:
            player.hear()
            found.add(times, [player.turn() for _ in range(steps)][1:])
        finally:
            player.close()
    return found


def describe(name: str, found: Comparison, *, share: bool) -> Iterator[Figure]:
    """The figure with a bar, and what it rests on. ``share``: of the step, else milliseconds."""
    walls = found.wall if share else [1.0] * len(found.wall)
    scale, unit, bar = (100, "%", "<= 5") if share else (1000, "ms", "<= 25")

    def scaled(values: Sequence[float]) -> list[float]:
        return [scale * value / wall for value, wall in zip(values, walls, strict=True)]

    yield level(f"overhead, {name}", scaled(found.overhead), unit, bar)
    yield level(f"overhead, {name}, vs one process", scaled(found.against), unit, "info")
    yield level(f"step wall, {name}", found.wall, "s", "info")
    ratios = [a / b for a, b in zip(found.work, found.alone, strict=True)]
    yield level(f"same work, run / one process, {name}", ratios, "x", "info")
    yield level(f"equal chain in one process, {name}", found.equal, "", "info")
