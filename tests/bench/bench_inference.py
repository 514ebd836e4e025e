"""A batch of ours against ``LLM.generate``, and against vLLM's ``run_batch``, turn by turn in one run, on vLLM's CPU build.

512 rows of unequal lengths, a model of 110 million random weights, Fast, equal ``max_num_seqs``: the ledger, the HTTP and the
files are ours alone. ``routing`` (``run.py inference routing``) is simulated and takes no engine. ``BENCH_ROWS=96 BENCH_SEQUENCES=16 BENCH_PAIRS=3``: minutes on two cores. ``BENCH_THREADS=1``: each
engine computes on one of the two cores, and what feeds it has the other, as it has beside a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from batch_job import ROWS, SEQUENCES, write_job
from contest import PAIRS
from duel import THREADS, Duel, Side, fight, pin
from figures import Figure, level, ratio
from routing_figures import measure as routing

CORES = 2
BAR = ">= 0.93"
"""Of the worse end; the middle is to be 0.97."""
RUNNER_BAR = ">= 1"
"""Of the worse end, over ``run_batch``."""


def measure(*sections: str) -> Iterator[Figure]:
    """All figures, or those of some sections. Raises KeyError for an unknown one."""
    for section in sections or SECTIONS:
        yield from SECTIONS[section]()


def batch() -> Iterator[Figure]:
    """New tokens per second of all rows, ours over theirs."""
    found = _fight("batch_theirs.py")
    name = f"batch, {ROWS} rows, {SEQUENCES} together, {THREADS} threads"
    figure = _ratio(f"{name}, over LLM.generate", found, BAR)
    yield figure
    middle = replace(figure, name=f"{name}, middle", bar=">= 0.97", low=figure.value, samples={})
    yield replace(middle, high=figure.value)
    yield from _rest(name, found)


def run_batch() -> Iterator[Figure]:
    """New tokens per second of all rows, ours over vLLM's own batch runner."""
    found = _fight("batch_runner.py")
    name = f"batch beside run_batch, {ROWS} rows, {SEQUENCES} together, {THREADS} threads"
    yield _ratio(f"{name}, over run_batch", found, RUNNER_BAR)
    yield from _rest(name, found)


def _fight(theirs: str) -> Duel:
    pin(CORES)
    scripts = {"ours": "batch_ours.py", "theirs": theirs}
    with TemporaryDirectory(prefix="rollout-bench-batch-") as name:
        job = write_job(Path(name))
        sides = {side: Side(script=scripts[side], arguments=(job,)) for side in SIDES}
        return fight(sides, [PAIRS])


def _ratio(name: str, found: Duel, bar: str) -> Figure:
    raw = {f"{side}_{what}": found.values(side, what) for side in SIDES for what in FACTS}
    figure = ratio(name, *(found.seconds_per(side, "tokens") for side in SIDES), bar)
    return replace(figure, samples={**figure.samples, **raw})


def _rest(name: str, found: Duel) -> Iterator[Figure]:
    yield _processor(name, found)
    pair = [found.seconds_per(side, "tokens") for side in SIDES]
    for side, seconds in zip(SIDES, pair, strict=True):
        yield level(f"{name}, {side}", [1 / one for one in seconds], "tokens/s", "info")


def _processor(name: str, found: Duel) -> Figure:
    """Processor seconds of all processes of a side, per token: others on the machine change it less than time."""
    spent = [
        [turn["tree_cpu_seconds"] / turn["tokens"] for turn in found.turns[side]] for side in SIDES
    ]
    quotients = [ours / theirs for ours, theirs in zip(*spent, strict=True)]
    return level(f"{name}, processor time over theirs", quotients, "x", "info")


SIDES = ("ours", "theirs")
FACTS = ("seconds", "tree_cpu_seconds", "rows", "tokens")
SECTIONS = {"batch": batch, "run-batch": run_batch, "routing": routing}
