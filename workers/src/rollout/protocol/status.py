"""What ``GET /v1/status`` says (JSON): everything a progress display or a condition needs.

Ages and waits are seconds on the coordinator's clock. Nothing here is ever read back as truth.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rollout.protocol.messages import WireMessage

WHOLE_RUN = "run"
"""Who waits where nobody of the run can go on."""


class Waiting(WireMessage, frozen=True, kw_only=True):
    """Who waits for what, since when, and because of whom. Every wait has a named culprit.

    ``culprit`` is text for people; ``workers`` are the names in it of those that could be started anew,
    the likeliest first: names are never looked for in text, where ``actor-1`` is found in ``actor-10``.
    """

    who: str
    what: str
    culprit: str
    seconds: float
    workers: tuple[str, ...] = ()


class WorkerStatus(WireMessage, frozen=True, kw_only=True):
    """One process as the coordinator sees it.

    ``num_wrong``: weight loads whose digest was not the version's; ``num_rebuilt``: how often this process
    made its weights anew from a dense base.
    """

    worker: str
    role: str
    incarnation: int
    alive: bool
    heartbeat_age_seconds: float
    state: str
    loaded_step: int | None
    num_tasks: int
    restarts: int
    outcome: str | None = None
    num_wrong: int = 0
    num_rebuilt: int = 0


class EvaluationStatus(WireMessage, frozen=True, kw_only=True):
    """One evaluation of one version. ``metrics`` is filled when ``num_done == num_total``."""

    name: str
    split: str
    lineage: int
    step: int
    num_done: int
    num_total: int
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)


class InferStatus(WireMessage, frozen=True, kw_only=True):
    """How far an inference run is. ``seconds_left`` None: nothing to tell it from yet."""

    num_rows: int
    num_done: int
    num_failed: int
    num_tokens: int
    seconds_left: float | None = None


class Condition(WireMessage, frozen=True, kw_only=True):
    """A Kubernetes-style condition: ``Learning=False, reason NoLearningSignal``."""

    type: str
    status: bool
    reason: str
    message: str


class RunOutcome(WireMessage, frozen=True, kw_only=True):
    """How the run ended: ``Succeeded``, ``Failed`` or ``Stopped`` (resumable)."""

    kind: str
    reason: str
    message: str


class GroupStatus(WireMessage, frozen=True, kw_only=True):
    """The learner's pods; ``missing`` are ranks that have not checked in, Failed asks for a new incarnation."""

    incarnation: int
    size: int
    stage: Literal["Joining", "Running", "Failed", "Done"]
    missing: tuple[int, ...]
    message: str


class Status(WireMessage, frozen=True, kw_only=True):
    """What ``GET /v1/status`` answers: everything a progress display needs."""

    name: str
    uid: str
    phase: str
    lineage: int
    step: int
    steps_max: int | None
    policy_version: int | None
    chain: str
    position: int
    uptime_seconds: float
    seconds_per_step: float | None
    tokens_per_second: float | None
    reward: float | None
    loss: float | None
    metrics: dict[str, Any]
    phase_seconds: dict[str, float]
    waiting: tuple[Waiting, ...]
    bottleneck: str
    dispositions: dict[str, int]
    workers: tuple[WorkerStatus, ...]
    evaluations: tuple[EvaluationStatus, ...]
    conditions: tuple[Condition, ...]
    actors_wanted: int | None = None
    best: dict[str, Any] | None = None
    anchor: str | None = None
    settings_generation: int = 0
    group: GroupStatus | None = None
    infer: InferStatus | None = None
    outcome: RunOutcome | None = None


def rank_waits(status: Status) -> list[Waiting]:
    """What is waited for, first what explains the others: what the run itself waits for, then the longest."""
    return sorted(status.waiting, key=lambda one: (one.who != WHOLE_RUN, -one.seconds))


def find_waited_for(status: Status) -> WorkerStatus | None:
    """The worker that has not ended and is waited for the longest; None where no worker is.

    Nobody is where the run waits for what no worker can bring, such as room on a disk.
    """
    working = {worker.worker: worker for worker in status.workers if worker.outcome is None}
    for waiting in rank_waits(status):
        if waiting.who == WHOLE_RUN and not waiting.workers:
            return None
        for name in waiting.workers:
            if name in working:
                return working[name]
    return None
