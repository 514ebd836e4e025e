"""What the control plane adds to a step: claim, submit, batch and commit of 256 tiny trajectories.

A real coordinator process, HTTP and SQLite with an fsync per acknowledged write; the workers only move
messages, so every millisecond measured is overhead. CPU is the coordinator's process alone, after the warm-up.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
from fake_run import GROUPS, SAMPLES, SECRET
from figures import Figure, level

from rollout.objects.filesystem import FilesystemStore
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient
from rollout.types import Trajectory, VersionSpan, WeightVersion

WARM_STEPS, STEPS = 20, 200
STRETCH = 20
OBJECT_BYTES = 4096


@dataclass(slots=True, kw_only=True)
class Phases:
    """Milliseconds of one step, by call; the coordinator's CPU seconds when each step began."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: list[float] = field(default_factory=list)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure a block."""
        start = time.perf_counter()
        yield
        self.samples.setdefault(name, []).append((time.perf_counter() - start) * 1e3)


def measure() -> Iterator[Figure]:
    """One figure a call, and their sum."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _coordinator(folder) as url:
            phases = _run(url, folder)
    kept = {key: values[WARM_STEPS:] for key, values in phases.samples.items()}
    total = [sum(parts) for parts in zip(*kept.values(), strict=True)]
    for key, values in kept.items():
        yield level(f"ledger: {key}, {GROUPS} x {SAMPLES}", values, "ms", "info")
    yield level(f"ledger: whole step, {GROUPS} x {SAMPLES}", total, "ms", "<= 15")
    yield level("ledger: CPU per trajectory", cpu_per_trajectory(phases), "us", "info")


def cpu_per_trajectory(phases: Phases) -> list[float]:
    """Microseconds of the coordinator, over stretches that are long against the clock of the kernel."""
    marks = phases.cpu_seconds[WARM_STEPS::STRETCH]
    count = STRETCH * GROUPS * SAMPLES
    return [1e6 * (after - before) / count for before, after in pairwise(marks)]


@contextmanager
def _coordinator(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        str(Path(__file__).with_name("fake_run.py")),
        str(folder),
        str(port),
    ]
    process = subprocess.Popen(command)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _run(url: str, folder: Path) -> Phases:
    actor = CoordinatorClient.connect(url, token_for(SECRET, "actor"))
    learner = CoordinatorClient.connect(url, token_for(SECRET, "learner"))
    store = FilesystemStore(folder / "objects")
    mine = actor.as_worker("actor-0").call(routes.REGISTER, m.Register()).incarnation
    theirs = learner.as_worker("learner").call(routes.START, m.LearnerStart()).incarnation
    actor, learner = actor.as_worker("actor-0", mine), learner.as_worker("learner", theirs)
    digest = store.put(b"w" * OBJECT_BYTES)
    version = WeightVersion(lineage=0, step=0, digest=digest, object=digest)
    learner.call(routes.PUBLISH_INITIAL, m.PublishInitial(version=version))
    phases = Phases()
    (coordinator,) = psutil.Process().children()
    for step in range(1, WARM_STEPS + STEPS + 1):
        phases.cpu_seconds.append(sum(coordinator.cpu_times()[:2]))
        _step(phases, actor, learner, step, digest)
    phases.cpu_seconds.append(sum(coordinator.cpu_times()[:2]))
    return phases


def _step(
    phases: Phases,
    actor: CoordinatorClient,
    learner: CoordinatorClient,
    step: int,
    digest: str,
) -> None:
    with phases.time("claim"):
        ask = m.Claim(tasks_max=GROUPS, wait_seconds=5.0)
        tasks = actor.call(routes.CLAIM, ask).tasks
    results = tuple(
        m.TaskResult(
            task_id=task.task_id,
            epoch=task.epoch,
            trajectories=tuple(_sample(task, sample) for sample in range(SAMPLES)),
        )
        for task in tasks
    )
    with phases.time("submit"):
        actor.call(routes.SUBMIT, m.Submit(results=results))
    with phases.time("batch"):
        batch = learner.call(routes.BATCH, m.BatchRequest(step=step, wait_seconds=5.0))
    assert len(batch.groups) == GROUPS
    assert batch.cursor is not None
    with phases.time("commit"):
        learner.call(
            routes.COMMIT,
            m.Commit(
                step=step,
                lineage=0,
                consumed=tuple(name for group in batch.ids for name in group),
                plan={},
                version=WeightVersion(lineage=0, step=step, digest=digest, object=digest),
                chain=f"blake3:{step:064x}",
                cursor=batch.cursor,
                metrics={"reward": 0.5, "loss": 0.1},
            ),
        )


def _sample(task: m.Task, sample: int) -> Trajectory:
    span = VersionSpan(start=0, end=4, lineage=task.version.lineage, step=task.version.step)
    return Trajectory(
        ordinal=task.ordinal,
        sample=sample,
        prompt_ids=tuple(range(8)),
        token_ids=(9, 8, 7, sample),
        actor_logprobs=(-0.123456, -0.234567, -0.345678, -0.456789),
        loss_mask=(1, 1, 1, 1),
        spans=(span,),
        rewards={"exact-match": float(sample % 2)},
        reward=float(sample % 2),
        ending="stop",
        text="198",
        prompt_text="99+99=",
        answer="198",
        timings={"generate": 0.01},
    )
