"""A run of small steps for as many minutes as are given: what its processes hold, and what lies on its disk, over steps.

A real coordinator with SQLite; a real actor's loop over an engine that draws from a hash; a learner that stores a version,
commits it and saves an anchor now and then, over the product's own client and store. Steps are 4 groups of 2 samples.
Every so often the resident memory of each process and the bytes of the ledger and of the objects are read. After
the warm-up a line is fitted through each: bytes a step, beside what a step adds to the ledger that is kept.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from coordinators import Running, run_coordinator
from fake_run import SECRET
from figures import Figure, level

from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient

GROUPS, SAMPLES = 4, 2
MINUTES = "10"
LOOKS = 200
LOOK_SECONDS_MIN = 0.5
WARM_SHARE = 0.25
"""Of the looks, these are left out of the line."""
MEMORY_BAR = "<= 100"
"""Bytes a step of a process: a week of 6 steps a second is 3.6 million steps and 360 MB."""
DISK_BAR = "<= 1.1"
"""How much more a step adds to the ledger in the second half than in the first."""


@dataclass(slots=True)
class Looks:
    """What was seen: steps, and bytes by what they are of."""

    steps: list[int] = field(default_factory=list)
    sizes: dict[str, list[float]] = field(default_factory=dict)

    def add(self, step: int, sizes: dict[str, float]) -> None:
        """One look."""
        self.steps.append(step)
        for name, size in sizes.items():
            self.sizes.setdefault(name, []).append(size)

    def slope(self, name: str, first: float = WARM_SHARE, last: float = 1.0) -> float:
        """Bytes a step, fitted over a share of the looks."""
        part = slice(int(first * len(self.steps)), int(last * len(self.steps)))
        return float(np.polyfit(self.steps[part], self.sizes[name][part], 1)[0])


def measure(minutes: str = MINUTES) -> Iterator[Figure]:
    """Slopes of memory, each process's at its end, and of the disk."""
    with tempfile.TemporaryDirectory(prefix="rollout-bench-weeks-") as name:
        looks = _watch(Path(name), 60.0 * float(minutes))
    yield level("endurance: steps taken", [looks.steps[-1]], "steps", "info")
    for process in ("coordinator", "actor", "learner"):
        yield level(
            f"endurance: memory of {process} at the end", _end(looks, process), "MB", "info"
        )
        slope = [looks.slope(process)]
        yield level(f"endurance: memory of {process} a step", slope, "B", MEMORY_BAR)
    for place in ("ledger", "objects"):
        yield level(f"endurance: {place} on disk at the end", _end(looks, place), "MB", "info")
    yield level("endurance: objects on disk a step", [looks.slope("objects")], "B", MEMORY_BAR)
    halves = looks.slope("ledger", WARM_SHARE, 0.6), looks.slope("ledger", 0.6)
    yield level("endurance: ledger on disk a step", [looks.slope("ledger")], "B", "info")
    yield level("endurance: ledger a step, later / earlier", [halves[1] / halves[0]], "x", DISK_BAR)


def _end(looks: Looks, name: str) -> list[float]:
    return [looks.sizes[name][-1] / 1e6]


def _watch(folder: Path, seconds: float) -> Looks:
    looks, every = Looks(), max(LOOK_SECONDS_MIN, seconds / LOOKS)
    with run_coordinator(folder, GROUPS, SAMPLES) as running:
        workers = {
            name: subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("fake_workers.py")), name, *words]
            )
            for name, words in _commands(running, folder).items()
        }
        try:
            _look(looks, folder, running, workers, every, time.monotonic() + seconds)
        finally:
            for process in workers.values():
                process.send_signal(signal.SIGKILL)
                process.wait()
    return looks


def _commands(running: Running, folder: Path) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(("actor", "learner"), (running.url, str(folder)))


def _look(
    looks: Looks,
    folder: Path,
    running: Running,
    workers: dict[str, subprocess.Popen],
    every: float,
    until: float,
) -> None:
    status: Callable = CoordinatorClient.connect(running.url, token_for(SECRET, "operator")).status
    pids = {"coordinator": running.pid, **{name: one.pid for name, one in workers.items()}}
    while time.monotonic() < until:
        time.sleep(every)
        if gone := [name for name, process in workers.items() if process.poll() is not None]:
            raise RuntimeError(f"{gone[0]} ended with {workers[gone[0]].returncode}")
        step = status().step
        sizes = {name: float(psutil.Process(pid).memory_info().rss) for name, pid in pids.items()}
        sizes["ledger"] = float(sum(one.stat().st_size for one in folder.glob("ledger.db*")))
        sizes["objects"] = float(_size_below(folder / "objects"))
        looks.add(step, sizes)


def _size_below(folder: Path) -> int:
    """Bytes of its files; those that go meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
