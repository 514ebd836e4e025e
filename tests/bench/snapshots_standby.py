"""A run with a standby of whose learner a rank is killed every tenth step, beside the same run undisturbed and without one, in turns.

Two ranks, steps of three seconds and more: a reward that waits makes them so, as one that asks a judge or runs a program does. What
counts are the seconds from the first committed step to the last; both come to one chain, or there is no figure.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import psutil
from figures import Figure, level, ratio
from real_run import Started, started, write_manifest

from rollout.errors import LedgerError
from rollout.learner.standby.seat import read_holder
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.ledger.views import StepView
from rollout.runs.run_dir import RunDir

ROUNDS = int(os.environ.get("BENCH_STANDBY_ROUNDS", "3"))
STEPS = 31
KILLED_AFTER = (6, 16, 26)
REWARD_SECONDS = 3.0
MOVE_SECONDS_MAX = 300.0
REWARD = f"""
import time

def even(prompts, completions, rows):
    time.sleep({REWARD_SECONDS})
    return [sum(t % 2 == 0 for t in c.token_ids) / len(c.token_ids) for c in completions]
"""
DIGITS = {"name": "arithmetic", "parameters": [{"name": "digits", "value": "1"}]}
MANIFEST = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "bench"},
    "spec": {
        "seed": 11,
        "model": {"uri": "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&context=64"},
        "learner": {"processesPerNode": 2},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 4}},
            "environment": {"builtin": DIGITS},
            "rewards": [{"python": {"path": "even.py", "function": "even"}}],
            "sampling": {"maxNewTokens": 8},
            "maxSteps": STEPS,
        },
    },
}


def measure() -> Iterator[Figure]:
    """ROUNDS pairs of runs; who begins alternates."""
    calm, killed = [], []
    steps: list[float] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        (folder / "even.py").write_text(REWARD)
        manifest = write_manifest(folder / "run.yaml", MANIFEST)
        for number in range(ROUNDS):
            chains = set()
            for points in ((), KILLED_AFTER) if number % 2 else (KILLED_AFTER, ()):
                found = _run(manifest, folder / f"run-{number}-{len(points)}", points)
                chains.add(found[-1].chain)
                (killed if points else calm).append(found[-1].committed_at - found[0].committed_at)
                steps += (
                    [] if points else [b.committed_at - a.committed_at for a, b in pairwise(found)]
                )
            assert len(chains) == 1, f"the runs of a round came to {len(chains)} chains"
    yield ratio("undisturbed over disturbed, with a standby", killed, calm, ">= 0.9")
    lost = [(b - a) / len(KILLED_AFTER) for a, b in zip(calm, killed, strict=True)]
    yield level("seconds that a killed rank costs", lost, "s", "info")
    yield level("steps of the undisturbed run", steps, "s", ">= 3")


def _run(manifest: Path, run_dir: Path, points: Sequence[int]) -> Sequence[StepView]:
    """The steps of a run that a rank was killed of after each of these; one with a standby where there are any."""
    with started(manifest, run_dir, *(["learner.standby=true"] if points else [])) as running:
        for number, point in enumerate(points):
            _wait_for(running, point)
            _kill(running, rank=number % 2)
        code = running.process.wait()
    if code != 0:
        said = run_dir.with_suffix(".log").read_text()[-3000:]
        raise RuntimeError(f"rollout run ended with {code}:\n{said}")
    return steps_of(running.run)


def _wait_for(running: Started, step: int) -> None:
    """Until a step is committed, and half of the next one's least time is over."""
    deadline = time.monotonic() + MOVE_SECONDS_MAX
    while len(steps_of(running.run)) < step:
        assert running.process.poll() is None, "the run has ended"
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.05)
    time.sleep(REWARD_SECONDS / 2)


def _kill(running: Started, rank: int) -> None:
    """One rank of the learner that trains, by the log that it writes."""
    log = running.run.logs / f"{read_holder(running.run.path)}.log"
    for one in psutil.Process(running.process.pid).children(recursive=True):
        if "rollout.entrypoints.learner" in one.cmdline() and _is(one, rank, log):
            one.kill()
            return
    raise AssertionError(f"no rank {rank} writes {log}")


def _is(process: psutil.Process, rank: int, log: Path) -> bool:
    return (
        process.environ().get("RANK") == str(rank)
        and Path(f"/proc/{process.pid}/fd/1").readlink() == log.resolve()
    )


def steps_of(run: RunDir) -> Sequence[StepView]:
    """What a run has committed so far; nothing while there is no ledger yet."""
    if not run.ledger.exists():
        return ()
    try:
        with LedgerReader(run.ledger) as reader:
            return reader.steps()
    except LedgerError:
        return ()
