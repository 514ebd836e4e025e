"""What people and reports read from a ledger: frozen rows, the same for every implementation."""

from __future__ import annotations

from typing import Any

from rollout.codec import Outline
from rollout.ledger.records import Record, RunIdentity, SampleRow
from rollout.types import Trajectory, WeightVersion


class RunView(Record, frozen=True, kw_only=True):
    """The run as a whole. ``step`` is the last committed one, ``chain`` its chain value."""

    identity: RunIdentity
    created_at: float
    position: int
    lineage: int
    step: int
    chain: str
    version: WeightVersion | None
    outcome: dict[str, str] | None


class StepView(Record, frozen=True, kw_only=True):
    """One committed step."""

    lineage: int
    step: int
    version: WeightVersion
    chain: str
    metrics: dict[str, Any]
    phase_seconds: dict[str, float]
    num_consumed: int
    committed_at: float


class RemovedView(Record, frozen=True, kw_only=True):
    """What is no longer kept: bodies of steps up to ``step`` (0: all are), how many, and their bytes."""

    step: int
    num_bodies: int
    size_bytes: int


class SampleView(Record, frozen=True, kw_only=True):
    """One sample; ``place`` is its place in the step that consumed it, None otherwise.

    ``trajectory`` None: no longer kept. What stands beside it always is.
    """

    task_id: str
    trajectory_id: str
    sample: int
    reward: float
    num_tokens: int
    ending: str
    place: int | None
    trajectory: Trajectory | None


class SampleExcerpt(Record, frozen=True, kw_only=True):
    """One consumed sample as a list shows it: the end of its prompt, the beginnings of its text and its answer.

    The three are None where its body is no longer kept.
    """

    task_id: str
    trajectory_id: str
    sample: int
    step: int
    place: int
    reward: float
    num_tokens: int
    ending: str
    prompt: str | None
    text: str | None
    answer: str | None


class ConsumedGroup(Record, frozen=True, kw_only=True):
    """One group that a step consumed: its rewards, its longest completion, and who made it from which version."""

    task_id: str
    ordinal: int
    place: int
    num: int
    mean: float
    low: float
    high: float
    longest: int
    worker: str | None
    version: int | None


class WorkerView(Record, frozen=True, kw_only=True):
    """One process that has registered. ``num_held`` tasks are leased to it; ``endings`` counts its attempts by how they ended."""

    worker: str
    role: str
    incarnation: int
    pid: int
    host: str
    registered_at: float
    outcome: str | None
    num_held: int
    held_since: float | None
    expires_at: float | None
    endings: dict[str, int]


class LifeView(Record, frozen=True, kw_only=True):
    """A process from when it was first heard to when it was last heard, in milliseconds since 1970."""

    worker: str
    incarnation: int
    role: str
    began_ms: int
    heard_ms: int
    place: dict[str, Any]


class AttemptView(Record, frozen=True, kw_only=True):
    """One try at a task. ``ending`` None: under way."""

    epoch: int
    worker: str
    incarnation: int
    version_lineage: int
    version_step: int
    started_at: float
    ended_at: float | None
    ending: str | None
    message: str | None


class Consumption(Record, frozen=True, kw_only=True):
    """How a sample ended in one lineage."""

    lineage: int
    step: int
    kind: str
    reason: str
    place: int | None


class TraceView(Record, frozen=True, kw_only=True):
    """Where one trajectory came from and went: prompt, attempts, tokens, batch, step, anchor.

    ``anchor`` is the first anchor that holds the step which consumed it. ``trajectory`` None: no longer kept; an outline
    has no tokens.
    """

    task_id: str
    trajectory_id: str
    sample: SampleRow
    trajectory: Trajectory | Outline | None
    admitted_at: float
    attempts: tuple[AttemptView, ...]
    consumptions: tuple[Consumption, ...]
    version_after: WeightVersion | None
    anchor: str | None


class EvaluationView(Record, frozen=True, kw_only=True):
    """One evaluation of one version; ``summary`` None while it runs."""

    name: str
    split: str
    lineage: int
    step: int
    num_prompts: int
    summary: dict[str, Any] | None
    scheduled_at: float
    finished_at: float | None


class EventView(Record, frozen=True, kw_only=True):
    """One notable event."""

    at: float
    kind: str
    message: str
    data: dict[str, Any]
