"""What goes into a ledger and comes out of it: frozen data, no SQL, no clock.

``task_id`` names a task for ever (``t/17``: ordinal 17 of training; ``e/heldout/selection/0-25/3``:
prompt 3 of an evaluation of lineage 0, step 25; ``r/17``: row 17 of an offline algorithm).
A sample is (task_id, sample index). Times are seconds since 1970 on the ledger's clock.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rollout.memory import MemoryWrite
from rollout.types import WeightVersion

TaskKind = Literal["train", "eval", "row"]
TaskState = Literal["open", "leased", "done", "excluded", "expired", "surplus"]
DispositionKind = Literal["consumed", "filtered", "expired", "excluded", "surplus"]
FailureKind = Literal["infrastructure", "data", "returned"]

ORDINALS_MAX = 2**62
"""Above every task ordinal: no bound."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every record: immutable, keyword-only."""


class RunIdentity(Record, frozen=True, kw_only=True):
    """The first row of a ledger; a ledger of another identity is refused.

    ``identity_format``: how the digest was made; 0: it was not said.
    """

    uid: str
    name: str
    spec_digest: str
    identity_format: int = 0


class Limits(Record, frozen=True, kw_only=True):
    """How often a task is tried.

    ``failures_max`` counts infrastructure failures that an actor reported, ``losses_max`` attempts
    whose worker died or let the lease expire; reaching either excludes the task.
    """

    failures_max: int = 5
    losses_max: int = 20


class Cursor(Record, frozen=True, kw_only=True):
    """Where the data stands after a step: the first ordinal that no step has taken yet."""

    next_ordinal: int
    exhausted: bool = False


class NewTask(Record, frozen=True, kw_only=True):
    """A task to admit. ``lineage`` and ``step`` pin an evaluation's version; 0 for training."""

    task_id: str
    kind: TaskKind
    ordinal: int
    num_samples: int
    evaluation: str = ""
    split: str = "train"
    lineage: int = 0
    step: int = 0


class Lease(Record, frozen=True, kw_only=True):
    """A task in one worker's hands. ``epoch`` fences; ``attempt`` counts tries from 1.

    (``version_lineage``, ``version_step``) is the version that this attempt samples from. ``failures``
    counts the infrastructure failures reported before it; ``prefixed`` says that an earlier attempt left
    beginnings (``Ledger.prefixes_of``).
    """

    task: NewTask
    epoch: int
    attempt: int
    worker: str
    incarnation: int
    version_lineage: int
    version_step: int
    leased_at: float
    expires_at: float
    failures: int = 0
    prefixed: bool = False


class LifeNote(Record, frozen=True, kw_only=True):
    """A process that was heard ``ago_seconds`` ago. ``place`` says what it stands on, as bills are made of it."""

    worker: str
    incarnation: int
    role: str
    place: dict[str, Any]
    ago_seconds: float = 0.0


class Freed(Record, frozen=True, kw_only=True):
    """Tasks whose worker vanished: those open again, and those given up."""

    opened: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


class Registration(Record, frozen=True, kw_only=True):
    """A worker's new incarnation, and what its former one let go."""

    incarnation: int
    freed: Freed


class Claims(Record, frozen=True, kw_only=True):
    """Leases handed out, and expired ones that were taken back on the way."""

    leases: tuple[Lease, ...]
    freed: Freed


class ClaimRequest(Record, frozen=True, kw_only=True):
    """Ask for leases: expired ones first come, first served with open ones, evaluations before training.

    Leases of this worker that ``held`` does not list are handed out again. Training tasks are to be
    sampled from (``lineage``, ``step``); ``train`` False asks for evaluation tasks only. Training tasks
    from ``ordinal_end`` on entered with a later version than that one, and are too young for it.
    """

    worker: str
    incarnation: int
    tasks_max: int
    held: tuple[str, ...]
    lease_seconds: float
    lineage: int
    step: int
    train: bool = True
    ordinal_end: int = ORDINALS_MAX


class SampleRow(Record, frozen=True, kw_only=True):
    """What is queryable of one trajectory; the rest is in the task's body, ``writes`` into memory too."""

    sample: int
    trajectory_id: str
    reward: float
    num_tokens: int
    ending: str
    writes: tuple[MemoryWrite, ...] = ()


class MemoryRow(Record, frozen=True, kw_only=True):
    """A committed write into memory: what a sample of training task ``ordinal`` wrote, consumed by ``step``.

    ``key``, ``value`` and ``vector`` as in ``MemoryWrite``. Rows count in the order of their fields.
    """

    step: int
    ordinal: int
    sample: int
    key: str
    value: str
    vector: bytes = b""


class MemoryPart(Record, frozen=True, kw_only=True):
    """Some rows of memory as of a version, in their order; ``more``: there may be others behind the last one.

    ``kept_from``: rows up to this step are only those whose entries were there at its end.
    """

    rows: tuple[MemoryRow, ...]
    more: bool
    kept_from: int


class AttemptEnd(Record, frozen=True, kw_only=True):
    """The end of one attempt: all samples and their body, or a failure.

    ``prefixes`` (``rollout.codec.encode_prefixes``) are the beginnings that a ``returned`` one leaves to
    the next; empty: what an earlier attempt left stays.
    """

    task_id: str
    epoch: int
    samples: tuple[SampleRow, ...] = ()
    body: bytes = b""
    prefixes: bytes = b""
    failure: FailureKind | None = None
    message: str = ""


class Verdict(Record, frozen=True, kw_only=True):
    """What became of an attempt's end. ``state`` is the task's state afterwards."""

    accepted: bool
    reason: str
    state: TaskState
    data_failures: int = 0


class Disposition(Record, frozen=True, kw_only=True):
    """How one sample ended in a step. ``place`` is its place in the batch's order of consumption."""

    task_id: str
    sample: int
    kind: DispositionKind
    reason: str = ""
    place: int | None = None


class NewEvaluation(Record, frozen=True, kw_only=True):
    """One evaluation of one version, and its tasks."""

    name: str
    split: str
    lineage: int
    step: int
    tasks: tuple[NewTask, ...]


class Admission(Record, frozen=True, kw_only=True):
    """Tasks that enter the run. ``next_admitted`` is the first training ordinal still outside."""

    tasks: tuple[NewTask, ...] = ()
    next_admitted: int = 0
    exhausted: bool = False
    evaluations: tuple[NewEvaluation, ...] = ()


class StepCommit(Record, frozen=True, kw_only=True):
    """Everything that one learner step makes true, in one transaction.

    ``retired`` lists versions whose objects are already deleted; ``tracked_step`` the last step that
    every tracker has; both only ride along. ``claims`` are of actors that wait: they get what the commit lets in.
    ``memory``: what the consumed samples wrote.
    """

    incarnation: int
    lineage: int
    step: int
    dispositions: tuple[Disposition, ...]
    rows: tuple[NewTask, ...]
    plan: dict[str, Any]
    version: WeightVersion
    chain: str
    cursor: Cursor
    metrics: dict[str, Any]
    phase_seconds: dict[str, float]
    admission: Admission
    retired: tuple[tuple[int, int], ...] = ()
    tracked_step: int | None = None
    claims: tuple[ClaimRequest, ...] = ()
    memory: tuple[MemoryRow, ...] = ()


class StepRecord(Record, frozen=True, kw_only=True):
    """One committed step, as replay needs it. ``consumed`` holds ids in the order of consumption."""

    lineage: int
    step: int
    consumed: tuple[str, ...]
    plan: dict[str, Any]
    version: WeightVersion
    chain: str
    cursor: Cursor


ANCHOR_FORMAT = 1
"""Of ``AnchorManifest.state`` and the objects beside it; said there as ``format``, and no other is restored."""


class AnchorManifest(Record, frozen=True, kw_only=True):
    """A durable ``train_state``: the content of ``snapshots/<name>.json``.

    ``objects`` maps a part (``weights``, ``optimizer``, ...) to its object digest; every object named
    here, and ``version.object``, is kept while the manifest is. ``state`` is the learner's own.
    """

    name: str
    lineage: int
    step: int
    chain: str
    version: WeightVersion
    objects: dict[str, str]
    grade: str = "exact"
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    created_at: float = 0.0


class StoredGroup(Record, frozen=True, kw_only=True):
    """An admitted training task that no step of the live lineage has taken yet."""

    task: NewTask
    state: TaskState
    lease: Lease | None
    samples: tuple[SampleRow, ...]
    body: bytes | None


class StoredEvaluation(Record, frozen=True, kw_only=True):
    """An evaluation; ``rewards[i]`` of the i-th finished prompt, ``summary`` None while it runs."""

    name: str
    split: str
    lineage: int
    step: int
    num_tasks: int
    rewards: dict[int, tuple[float, ...]]
    lengths: dict[int, tuple[int, ...]]
    excluded: tuple[int, ...]
    summary: dict[str, Any] | None


class Removal(Record, frozen=True, kw_only=True):
    """What one transaction removed; ``more``: there may be more to remove."""

    num_bodies: int
    size_bytes: int
    more: bool


class StepBatch(Record, frozen=True, kw_only=True):
    """The recorded batch of a committed step.

    ``samples`` are (task_id, sample index, trajectory id) in order of consumption; ``bodies`` by task.
    """

    step: int
    cursor: Cursor
    samples: tuple[tuple[str, int, str], ...]
    bodies: dict[str, bytes]
    num_excluded: int


class LedgerState(Record, frozen=True, kw_only=True):
    """All that a starting coordinator needs to go on from the last acknowledged write.

    ``head`` is the last committed step of the live lineage (None: none). ``first_waiting`` is its cursor's
    ordinal, or a later one where a run that has ended closed its books: ``groups`` begin there. ``versions`` are those whose
    objects may still exist. ``recent_metrics`` are of the last few steps, oldest first, ``recent_rewards``
    the rewards of their groups. ``evidence`` counts what is kept of workers, by their name. ``dead_anchors``
    are of steps that a fork has left behind, ``handed`` the places of models that others may start from. ``incarnations``: the newest of every worker that ever registered.
    """

    lineage: int
    ancestry: tuple[tuple[int, int | None], ...]
    head: StepRecord | None
    first_waiting: int
    initial: WeightVersion | None
    initial_chain: str
    next_admitted: int
    exhausted: bool
    groups: tuple[StoredGroup, ...]
    evaluations: tuple[StoredEvaluation, ...]
    eval_leases: tuple[Lease, ...]
    versions: tuple[WeightVersion, ...]
    anchors: tuple[AnchorManifest, ...]
    dispositions: dict[str, int]
    recent_metrics: tuple[dict[str, Any], ...]
    recent_rewards: tuple[tuple[tuple[float, ...], ...], ...]
    tracked_step: int
    outcome: dict[str, str] | None
    settings: dict[str, Any]
    evidence: dict[str, int] = {}
    dead_anchors: tuple[AnchorManifest, ...] = ()
    handed: tuple[str, ...] = ()
    incarnations: dict[str, int] = {}
