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
    """Who waits for what, since when, and because of whom. Every wait has a named culprit."""

    who: str
    """A worker's name, or ``WHOLE_RUN``."""
    what: str
    """What it waits for."""
    culprit: str
    """Text for people."""
    seconds: float
    """How long it has waited."""
    workers: tuple[str, ...] = ()
    """Names in ``culprit`` of workers that could be restarted, the likeliest first: names are never looked for in
    text, where ``actor-1`` is found in ``actor-10``."""


class WorkerStatus(WireMessage, frozen=True, kw_only=True):
    """One process as the coordinator sees it."""

    worker: str
    """Its name."""
    role: str
    """``actor`` or ``learner``."""
    incarnation: int
    """Of its process, from 1."""
    alive: bool
    """It has not ended, and its heartbeats come."""
    heartbeat_age_seconds: float
    """Since it was last heard of."""
    state: str
    """What it says that it does, or what is wrong with it."""
    loaded_step: int | None
    """Of the version in its engine; None: none."""
    num_tasks: int
    """That it holds under a lease."""
    restarts: int
    """``incarnation - 1``."""
    outcome: str | None = None
    """How it ended; None: it has not."""
    num_wrong: int = 0
    """Weight loads whose digest was not the version's."""
    num_rebuilt: int = 0
    """How often this process rebuilt its weights from a dense base."""
    plugins: str = ""
    """What it said last of plugins whose files have changed."""


class EvaluationStatus(WireMessage, frozen=True, kw_only=True):
    """One evaluation of one version."""

    name: str
    """As in the spec."""
    split: str
    """``selection`` or ``report``."""
    lineage: int
    """Of the version."""
    step: int
    """Of the version."""
    num_done: int
    """Tasks that are over, excluded ones included."""
    num_total: int
    """Its tasks."""
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    """Filled when ``num_done == num_total``."""


class InferStatus(WireMessage, frozen=True, kw_only=True):
    """How far an inference run is."""

    num_rows: int
    """Rows of the data, those included that are refused."""
    num_done: int
    """Rows with completions."""
    num_failed: int
    """Rows that are refused or have no completions."""
    num_tokens: int
    """Sampled so far."""
    seconds_left: float | None = None
    """By the pace of this coordinator's life; None: nothing to tell it from yet."""


class Condition(WireMessage, frozen=True, kw_only=True):
    """A Kubernetes-style condition: ``Learning=False, reason NoLearningSignal``."""

    type: str
    """In CamelCase."""
    status: bool
    """Whether it holds."""
    reason: str
    """In CamelCase; docs/reference/conditions lists them."""
    message: str
    """A sentence for people."""


class RunOutcome(WireMessage, frozen=True, kw_only=True):
    """How the run ended."""

    kind: str
    """``Succeeded``, ``Failed`` or ``Stopped`` (resumable)."""
    reason: str
    """In CamelCase; docs/reference/conditions lists them."""
    message: str
    """A sentence for people."""


class GroupStatus(WireMessage, frozen=True, kw_only=True):
    """The learner's pods."""

    incarnation: int
    """Of all of them together."""
    size: int
    """Pods, one for each node rank."""
    stage: Literal["Joining", "Running", "Failed", "Done"]
    """``Failed`` asks for a new incarnation."""
    missing: tuple[int, ...]
    """Ranks that have not checked in."""
    message: str
    """Why it failed, who is missing or silent; empty: all is well."""


class Status(WireMessage, frozen=True, kw_only=True):
    """What ``GET /v1/status`` answers: everything a progress display needs."""

    name: str
    """Of the run."""
    uid: str
    """Of the run's object, or of the run on this machine."""
    phase: str
    """``Starting``, ``Running``, ``Evaluating``, ``Finishing``, ``Stopping``, or ``RunOutcome.kind``."""
    lineage: int
    """The live one; a run begins with 0."""
    step: int
    """Last one committed; 0: none."""
    steps_max: int | None
    """Last step of the run as far as it is known; None: no bound."""
    policy_version: int | None
    """Step of the newest weights; None: version 0 is not published yet."""
    chain: str
    """Value of the hash chain behind ``step``."""
    position: int
    """Where the ledger stands."""
    uptime_seconds: float
    """Of this coordinator's process."""
    seconds_per_step: float | None
    """Of late; None: no step was timed yet."""
    tokens_per_second: float | None
    """Of the last step; None: it has none."""
    reward: float | None
    """Mean of the last step; None: it has none."""
    loss: float | None
    """Of the last step; None: it has none."""
    metrics: dict[str, Any]
    """All of the last step, by name."""
    phase_seconds: dict[str, float]
    """What each phase of the last step took."""
    waiting: tuple[Waiting, ...]
    """All that wait now."""
    bottleneck: str
    """``Actors``, ``Learner``, or ``Balanced``."""
    dispositions: dict[str, int]
    """Samples by how they ended; ``pending`` have not."""
    workers: tuple[WorkerStatus, ...]
    """Every worker that has registered."""
    evaluations: tuple[EvaluationStatus, ...]
    """Every evaluation of every version, those dropped left out."""
    conditions: tuple[Condition, ...]
    """What must be known of the run."""
    actors_wanted: int | None = None
    """How many actors there should be; None where their number follows nothing."""
    best: dict[str, Any] | None = None
    """The version that selection chose, with its value; None: none is chosen, or its weights are gone."""
    anchor: str | None = None
    """Name of the newest; None: there is none."""
    settings_generation: int = 0
    """Of the live settings in force; 0: those that the run began with."""
    group: GroupStatus | None = None
    """The learner's pods; None where no pod has ever checked in."""
    infer: InferStatus | None = None
    """None of a run that trains."""
    outcome: RunOutcome | None = None
    """None: the run has not ended."""


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
