"""Our side against TRL's on one job: the duel, and figures made of it. Shared by the training targets."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from duel import Duel, Side, Turn, fight, pin, split_rounds
from figures import Figure, level, ratio
from jobs import MODEL, Job

PAIRS = int(os.environ.get("BENCH_PAIRS", "6"))
SIZE = os.environ.get("BENCH_MODEL", MODEL)
"""Another model is for trying the benchmark itself."""
GIB = 2**30

_stack = ExitStack()


def start() -> None:
    """Take the cores; leave nothing behind when told to end."""
    pin()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@cache
def _folder() -> Path:
    """Where jobs and rows lie; removed when this process ends."""
    return Path(_stack.enter_context(TemporaryDirectory(prefix="rollout-bench-jobs-")))


def make(build: Callable[[Path], Job]) -> Job:
    """The job, its files in a folder that goes with this process."""
    return build(_folder())


def _write(job: Job) -> str:
    return job.write(_folder(), f"job-{abs(hash(job))}")


def ours(job: Job) -> Side:
    """The product's side."""
    return Side(script="our_side.py", arguments=(_write(job),))


def trl(job: Job) -> Side:
    """TRL's side."""
    return Side(script="trl_side.py", arguments=(_write(job),))


@cache
def duel_of(job: Job) -> Duel:
    """``PAIRS`` pairs of steps, over two sets of fresh processes; measured once."""
    return fight({"ours": ours(job), "trl": trl(job)}, split_rounds(PAIRS))


def speed(
    name: str, found: Duel, unit: str, bar: str, pair: tuple[str, str] = ("ours", "trl")
) -> Figure:
    """Ours over theirs in units per second, with everything that was measured as raw samples."""
    sides = [found.seconds_per(side, unit) for side in pair]
    figure = ratio(name, *sides, bar)
    raw = {
        f"{side}_{what}": found.values(side, what)
        for side in found.turns
        for what in ("seconds", "cpu_seconds", "peak_bytes", unit, "loss", "num_metrics")
    }
    phases = {
        f"{side}_{phase}_seconds": [turn["phases"][phase] for turn in turns]
        for side, turns in found.turns.items()
        for phase in turns[0].get("phases", {})
    }
    return replace(figure, samples={**figure.samples, **raw, **phases})


def rates(name: str, found: Duel, counted: str, unit: str = "") -> Iterator[Figure]:
    """What a turn's report calls ``counted`` (``unit`` for people), per second of every side."""
    for side in found.turns:
        values = [1 / seconds for seconds in found.seconds_per(side, counted)]
        yield level(f"{name}, {side}", values, f"{unit or counted}/s", "info")


def peaks(name: str, found: Duel) -> Iterator[Figure]:
    """Peak resident memory of the process after equal steps, libraries and all; and without them."""
    ends = {side: [turn["peak_bytes"] for turn in found.last[side]] for side in found.last}
    yield _quotient(f"learner peak memory, {name}, ours / TRL", ends, "<= 1.0")
    for side, values in ends.items():
        sized = [value / GIB for value in values]
        yield level(f"peak memory, {name}, {side}", sized, "GiB", "info")
    added = {side: _above(ends[side], said) for side, said in found.ready.items()}
    yield _quotient(f"peak above the loaded model, {name}, ours / TRL", added, "info")


def _above(peak_bytes: Sequence[float], ready: Sequence[Turn]) -> list[float]:
    return [peak - turn["now_bytes"] for peak, turn in zip(peak_bytes, ready, strict=True)]


def _quotient(name: str, values: dict[str, list[float]], bar: str) -> Figure:
    quotients = [a / b for a, b in zip(values["ours"], values["trl"], strict=True)]
    return replace(level(name, quotients, "x", bar), samples=dict(values))
