"""A batch of ours against ``LLM.generate``, turn by turn in one run, on vLLM's CPU build.

512 rows of unequal lengths, a model of 110 million random weights, Fast, equal ``max_num_seqs``: the ledger, the HTTP and the
files are ours alone. ``BENCH_ROWS=96 BENCH_SEQUENCES=16 BENCH_PAIRS=3``: minutes on two cores. ``BENCH_THREADS=1``: each
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

CORES = 2
BAR = ">= 0.93"
"""Of the worse end; the middle is to be 0.97."""


def measure(section: str = "batch") -> Iterator[Figure]:
    """All figures of a section; there is one. Raises KeyError for an unknown one."""
    yield from SECTIONS[section]()


def batch() -> Iterator[Figure]:
    """New tokens per second of all rows, ours over theirs."""
    pin(CORES)
    with TemporaryDirectory(prefix="rollout-bench-batch-") as name:
        job = write_job(Path(name))
        sides = {side: Side(script=f"batch_{side}.py", arguments=(job,)) for side in SIDES}
        found = fight(sides, [PAIRS])
    name = f"batch, {ROWS} rows, {SEQUENCES} together, {THREADS} threads"
    pair = [found.seconds_per(side, "tokens") for side in SIDES]
    raw = {f"{side}_{what}": found.values(side, what) for side in SIDES for what in FACTS}
    figure = ratio(f"{name}, over LLM.generate", *pair, BAR)
    yield replace(figure, samples={**figure.samples, **raw})
    middle = replace(figure, name=f"{name}, middle", bar=">= 0.97", low=figure.value, samples={})
    yield replace(middle, high=figure.value)
    yield _processor(name, found)
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
SECTIONS = {"batch": batch}
