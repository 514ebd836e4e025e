"""Train again on a run's recorded batches, without actors, and compare with what was committed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from rollout.debug.bench import Bench, ReplayStart, advance, begin, describe_runtime, open_bench
from rollout.learner.resume import Repeated
from rollout.protocol.messages import StepRecord

Line = dict[str, Any]


def replay_recorded(
    run_dir: Path, *, after: int = 0, steps_max: int | None = None
) -> Iterator[Line]:
    """First where the replay stands, then each recorded step taken again; at most ``steps_max`` steps.

    Begins at the newest anchor at or before step ``after``; 0 is the initial model. A line holds
    ``step``, ``loss``, ``gradient_norm``, ``chain`` as computed now, ``committed_chain``, and whether
    weights, chain and both are ``equal`` to what was committed. Goes on past a difference.
    Raises SpecError, LedgerError, DataError or StoreError when the run cannot be read.
    """
    with open_bench(run_dir) as bench:
        start = begin(bench, after)
        yield _describe_start(bench, start)
        yield from islice(_replay(bench, start), steps_max)


def _replay(bench: Bench, start: ReplayStart) -> Iterator[Line]:
    progress = start.progress
    while progress.step < bench.recording.last_step:
        again, record = advance(bench, progress)
        progress = again.progress
        yield _describe(again, record)


def _describe_start(bench: Bench, start: ReplayStart) -> Line:
    progress = start.progress
    return {
        "step": progress.step,
        "loss": None,
        "gradient_norm": None,
        "equal": start.weights_equal and start.chain_equal,
        "weights_equal": start.weights_equal,
        "chain_equal": start.chain_equal,
        "chain": progress.chain,
        "runtime_changes": describe_runtime(bench),
    }


def _describe(again: Repeated, record: StepRecord) -> Line:
    metrics = again.done.metrics
    return {
        "step": record.step,
        "loss": metrics["loss"],
        "gradient_norm": metrics["gradient_norm"],
        "equal": again.equal,
        "weights_equal": again.weights_equal,
        "chain_equal": again.chain_equal,
        "chain": again.progress.chain,
        "committed_chain": record.chain,
    }
