"""Small builders for ledger tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollout.codec import encode_body, name_trajectory
from rollout.ledger.contract import Ledger
from rollout.ledger.records import (
    Admission,
    AttemptEnd,
    ClaimRequest,
    Cursor,
    Disposition,
    Lease,
    Limits,
    NewTask,
    RunIdentity,
    SampleRow,
    StepCommit,
)
from rollout.types import Trajectory, VersionSpan, WeightVersion

IDENTITY = RunIdentity(uid="uid-1", name="arithmetic", spec_digest="blake3:" + "0" * 64)
NUM_SAMPLES = 2
TERM = 30.0


class Clock:
    """Time that only moves when told to."""

    def __init__(self) -> None:
        self._now = 1000.0
        self.followers: list[Callable[[float], None]] = []

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        self._now = now
        for follow in self.followers:
            follow(now)

    def __call__(self) -> float:
        return self.now


class RealClock(Clock):
    """The machine's, or the server's: nobody moves it."""

    def __call__(self) -> float:
        return time.time()


Open = Callable[[Path, Clock, Limits], Ledger]


def train_task(ordinal: int) -> NewTask:
    return NewTask(task_id=f"t/{ordinal}", kind="train", ordinal=ordinal, num_samples=NUM_SAMPLES)


def admission(start: int, end: int, **more: Any) -> Admission:
    tasks = tuple(train_task(ordinal) for ordinal in range(start, end))
    return Admission(tasks=tasks, next_admitted=end, **more)


def claim_request(worker: str, incarnation: int, **changes: Any) -> ClaimRequest:
    values: dict[str, Any] = {
        "tasks_max": 100,
        "held": (),
        "lease_seconds": TERM,
        "lineage": 0,
        "step": 0,
    }
    return ClaimRequest(worker=worker, incarnation=incarnation, **{**values, **changes})


def trajectory(ordinal: int, sample: int, *, step: int = 0, lineage: int = 0) -> Trajectory:
    return Trajectory(
        ordinal=ordinal,
        sample=sample,
        prompt_ids=(1, 2, ordinal),
        token_ids=(3, sample),
        actor_logprobs=(-0.5, -0.25),
        loss_mask=(1, 1),
        spans=(VersionSpan(start=0, end=2, lineage=lineage, step=step),),
        rewards={"exact-match": float(sample)},
        reward=float(sample),
        ending="stop",
        text=str(sample),
    )


def ended(lease: Lease, made: Sequence[Trajectory]) -> AttemptEnd:
    """What a coordinator makes of a group that came back whole."""
    rows = tuple(
        SampleRow(
            sample=one.sample,
            trajectory_id=name_trajectory(one),
            reward=one.reward,
            num_tokens=len(one.token_ids),
            ending=one.ending,
        )
        for one in made
    )
    return AttemptEnd(
        task_id=lease.task.task_id, epoch=lease.epoch, samples=rows, body=encode_body(made)
    )


def finished(lease: Lease) -> AttemptEnd:
    made = [
        trajectory(lease.task.ordinal, sample, step=lease.version_step)
        for sample in range(lease.task.num_samples)
    ]
    return ended(lease, made)


def failed(lease: Lease, kind: str = "infrastructure") -> AttemptEnd:
    return AttemptEnd(
        task_id=lease.task.task_id, epoch=lease.epoch, failure=kind, message="the node went away"
    )


def version(step: int, lineage: int = 0, salt: str = "") -> WeightVersion:
    name = f"{lineage}-{step}{salt}".encode().hex().ljust(64, "0")
    return WeightVersion(
        lineage=lineage, step=step, digest=f"blake3:{name}", object=f"blake3:{name}"
    )


def consume(ordinals: range, num_samples: int = NUM_SAMPLES) -> tuple[Disposition, ...]:
    samples = [(ordinal, sample) for ordinal in ordinals for sample in range(num_samples)]
    return tuple(
        Disposition(task_id=f"t/{ordinal}", sample=sample, kind="consumed", place=place)
        for place, (ordinal, sample) in enumerate(samples)
    )


def step_commit(
    step: int,
    ordinals: range,
    incarnation: int = 1,
    *,
    lineage: int = 0,
    dispositions: tuple[Disposition, ...] | None = None,
    salt: str = "",
    **more: Any,
) -> StepCommit:
    values: dict[str, Any] = {
        "rows": (),
        "plan": {"micro_batches": [[0, 1]]},
        "metrics": {"step": step, "reward": 0.5},
        "phase_seconds": {"forward": 0.1},
        "admission": Admission(),
    }
    return StepCommit(
        incarnation=incarnation,
        lineage=lineage,
        step=step,
        dispositions=consume(ordinals) if dispositions is None else dispositions,
        version=version(step, lineage, salt),
        chain=f"chain-{lineage}-{step}{salt}",
        cursor=Cursor(next_ordinal=ordinals.stop),
        **{**values, **more},
    )


async def started(ledger: Ledger, num_tasks: int = 4) -> tuple[int, int]:
    """A run with a learner, an actor, version 0 and tasks; returns both incarnations."""
    learner = (await ledger.register("learner", "learner")).incarnation
    actor = (await ledger.register("actor-0", "actor")).incarnation
    await ledger.publish_initial(learner, version(0), "chain-0-0")
    await ledger.admit(admission(0, num_tasks))
    return learner, actor
