"""``rollout run`` as a user starts it, and what its ledger says of every step."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from duel import environment

from rollout.errors import LedgerError
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.runs.run_dir import RunDir

ROLLOUT = str(Path(sys.executable).with_name("rollout"))
END_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A run under way; ``at`` is the time of day at which its process was started."""

    process: subprocess.Popen
    run: RunDir
    at: float


@contextmanager
def started(manifest: Path, run_dir: Path, *overrides: str) -> Iterator[Started]:
    """A real run: supervisor, coordinator, actor, learner. Interrupted on the way out if it lives."""
    sets = [word for item in overrides for word in ("--set", item)]
    log = run_dir.with_suffix(".log")
    with log.open("wb") as file:
        at = time.time()
        process = subprocess.Popen(
            [ROLLOUT, "run", "-f", str(manifest), "--run-dir", str(run_dir), *sets],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield Started(process=process, run=RunDir(path=run_dir), at=at)
    finally:
        _end(process)


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_to_end(manifest: Path, run_dir: Path, *overrides: str) -> RunDir:
    """The finished run. Raises RuntimeError when it fails."""
    with started(manifest, run_dir, *overrides) as running:
        code = running.process.wait()
    if code != 0:
        raise RuntimeError(
            f"rollout run ended with {code}:\n{run_dir.with_suffix('.log').read_text()[-3000:]}"
        )
    return running.run


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one committed step: from commit to commit, and what of it was work.

    ``sampled`` is the actor's, once its version is loaded: generation and rewards.
    """

    step: int
    wall: float
    train: float
    sampled: float
    chain: str


def step_times(run: RunDir) -> list[StepTimes]:
    """All steps but the first, which has no commit before it."""
    with LedgerReader(run.ledger) as reader:
        steps = reader.steps()
        return [
            StepTimes(
                step=step.step,
                wall=step.committed_at - before.committed_at,
                train=step.phase_seconds["train"],
                sampled=_sampled(reader, step.step),
                chain=step.chain,
            )
            for before, step in pairwise(steps)
        ]


def _sampled(reader: LedgerReader, step: int) -> float:
    """From the first group's begin to the last one's reward: all begin together, once the version is loaded."""
    timings = [view.trajectory.timings for view in reader.samples(step)]
    return max(one["generate"] + one["score"] for one in timings)


def evaluations(run: RunDir) -> Sequence[tuple[float, float]]:
    """Time of day and accuracy of every finished evaluation; none while there is no ledger yet."""
    if not run.ledger.exists():
        return ()
    try:
        with LedgerReader(run.ledger) as reader:
            found = reader.evaluations()
    except LedgerError:
        return ()
    return [
        (one.finished_at, _accuracy(one.summary))
        for one in found
        if one.finished_at is not None and one.summary is not None
    ]


def _accuracy(summary: dict[str, Any]) -> float:
    found = summary["accuracy"]
    return float(found["value"] if isinstance(found, dict) else found)


def write_manifest(path: Path, data: dict[str, Any]) -> Path:
    """JSON is YAML."""
    path.write_text(json.dumps(data))
    return path
