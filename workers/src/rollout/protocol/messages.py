"""Every message between the coordinator and the processes of a run, as frozen msgspec structs.

Bodies travel as msgpack (``/v1/status`` as JSON); ``rollout.protocol.routes`` says which goes
where. Unknown fields are ignored, missing optional ones take their default, so a struct may grow.

Fencing: a worker registers and is handed an ``incarnation``; a task is handed out under an ``epoch``.
A call under an older one is refused, so a process that slept past its lease can do no harm.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rollout.ledger.records import AnchorManifest, Cursor, FailureKind, StepRecord
from rollout.types import (
    Prefix,
    Row,
    SamplingParams,
    Trajectory,
    TrajectoryGroup,
    WeightVersion,
)

TaskKind = Literal["train", "eval"]
Role = Literal["actor", "learner", "operator"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every message: immutable, keyword-only."""


class Empty(Message, frozen=True, kw_only=True):
    """Nothing to say."""


# -- actors ---------------------------------------------------------------------------------------


class Register(Message, frozen=True, kw_only=True):
    """An actor process has started. ``index`` is its place among the run's actors."""

    worker: str
    index: int
    pid: int = 0
    host: str = ""


class Registered(Message, frozen=True, kw_only=True):
    """``incarnation`` must be sent with every later call; leases of older ones are taken back."""

    incarnation: int
    lease_seconds: float
    heartbeat_seconds: float


class Claim(Message, frozen=True, kw_only=True):
    """Ask for work.

    ``held`` lists every task the actor already works on: a task that was handed out in an answer
    that never arrived is handed out again, which makes a repeated claim harmless.
    ``loaded`` is the (lineage, step) now in the engine. Waits up to ``wait_seconds`` for work.
    """

    worker: str
    incarnation: int
    tasks_max: int
    held: tuple[str, ...] = ()
    loaded: tuple[int, int] | None = None
    wait_seconds: float = 0.0


class Task(Message, frozen=True, kw_only=True):
    """One whole group to sample: ``num_samples`` completions of one prompt, under one lease.

    Seeds are ``derive_seed(spec.seed, noise_domain, ordinal, sample)`` and do not depend on the
    attempt. All tokens must come from ``version``. ``ordinal`` is the task ordinal (train) or the
    position in ``split`` (eval). ``epoch`` is the fence that a submit must repeat. Samples with an entry
    in ``prefixes`` go on behind it, drawing from the seed of its segment; the rest of their tokens comes
    from ``version``.
    """

    task_id: str
    kind: TaskKind
    ordinal: int
    row: Row
    num_samples: int
    attempt: int
    epoch: int
    lease_seconds: float
    version: WeightVersion
    sampling: SamplingParams
    noise_domain: str = "train"
    evaluation: str | None = None
    split: str = "train"
    prefixes: tuple[Prefix, ...] = ()


class Claimed(Message, frozen=True, kw_only=True):
    """``stop`` means: no more work will come, report the outcome and end. ``reason`` says why."""

    tasks: tuple[Task, ...] = ()
    stop: bool = False
    reason: str = ""


class TaskProgress(Message, frozen=True, kw_only=True):
    """How far an actor is with a task: tokens so far of each sample under way, samples not begun."""

    task_id: str
    running: tuple[int, ...] = ()
    num_queued: int = 0
    prompt_tokens: int = 0


class Heartbeat(Message, frozen=True, kw_only=True):
    """A worker is alive. ``state`` is shown to people: ``generating``, ``loading version 12``.

    For an actor, ``task_ids`` are the tasks it holds: their leases are renewed. A learner sends none.
    ``progress`` is of those that are not about to be submitted; ``tokens_per_second`` is the pace of one
    of its samples, 0 while it is not known.
    """

    worker: str
    incarnation: int
    task_ids: tuple[str, ...] = ()
    state: str = ""
    step: int | None = None
    progress: tuple[TaskProgress, ...] = ()
    tokens_per_second: float = 0.0


class HeartbeatAnswer(Message, frozen=True, kw_only=True):
    """Tasks in ``lost`` belong to somebody else by now: drop them. ``stop`` as in ``Claimed``.

    Tasks in ``give_back`` are wanted elsewhere: return them as they are, with their prefixes.
    """

    lost: tuple[str, ...] = ()
    stop: bool = False
    give_back: tuple[str, ...] = ()


class Failure(Message, frozen=True, kw_only=True):
    """Why an attempt gave no trajectories.

    ``infrastructure``: node, network, engine; retried with the same noise, bounded, then excluded.
    ``data``: user code raised, hung or returned no finite number; tried once more, then the run
    stops with ``message``, which must name the reward or environment and the row.
    ``returned``: the actor is leaving and hands the task back; not counted as a try.
    """

    kind: FailureKind
    message: str


class TaskResult(Message, frozen=True, kw_only=True):
    """The end of one attempt: all ``num_samples`` trajectories, by sample index, or a failure.

    A failure of kind ``infrastructure`` may bring the trajectories of the samples that it did not reach,
    one of kind ``returned`` the beginnings of samples, by sample index.
    """

    task_id: str
    epoch: int
    trajectories: tuple[Trajectory, ...] = ()
    failure: Failure | None = None
    prefixes: tuple[Prefix, ...] = ()


class Submit(Message, frozen=True, kw_only=True):
    """Results of one or more tasks. Idempotent: repeating an accepted result is accepted again."""

    worker: str
    incarnation: int
    results: tuple[TaskResult, ...]


class Submitted(Message, frozen=True, kw_only=True):
    """``accepted[i]`` and, where False, ``reasons[i]`` for ``results[i]``. Accepted means durable."""

    accepted: tuple[bool, ...]
    reasons: tuple[str, ...]


class Activation(Message, frozen=True, kw_only=True):
    """An actor loaded ``version``; ``digest`` is over the tensors given to the engine's loader.

    ``num_rebuilt``: how often this process has made its copy of the weights anew from a dense base.
    """

    worker: str
    incarnation: int
    version: WeightVersion
    digest: str
    ok: bool
    seconds: float
    message: str = ""
    num_rebuilt: int = 0


class Outcome(Message, frozen=True, kw_only=True):
    """A worker is about to end. Sent before it exits; exit codes are only hints.

    A process that was replaced may end, too: refused, because its successor lives. ``incarnation`` 0: it
    never got as far as to register.
    """

    worker: str
    incarnation: int
    role: Role
    ok: bool
    message: str = ""


# -- learner --------------------------------------------------------------------------------------


class LearnerStart(Message, frozen=True, kw_only=True):
    """Rank 0 of the learner has started."""

    worker: str
    pid: int = 0
    host: str = ""


class LearnerStarted(Message, frozen=True, kw_only=True):
    """Where to go on: load ``anchor`` (None: the initial model), then replay ``replay`` in order.

    ``initial`` None: publish version 0 first. ``chain`` is the chain value of ``committed_step``.
    ``steps_max`` is the last step of the run as known now.
    """

    incarnation: int
    lineage: int
    committed_step: int
    chain: str
    anchor: AnchorManifest | None
    replay: tuple[StepRecord, ...]
    initial: WeightVersion | None
    heartbeat_seconds: float
    steps_max: int | None = None


class PublishInitial(Message, frozen=True, kw_only=True):
    """Version of step 0, its object already stored. Idempotent for an equal version."""

    worker: str
    incarnation: int
    version: WeightVersion
    chain: str = ""


class BatchRequest(Message, frozen=True, kw_only=True):
    """Ask for the batch of ``step`` (1-based, committed step + 1), waiting up to ``wait_seconds``.

    ``told_seconds``: the learner was told to go, and may save for so long; None: it was not.
    """

    worker: str
    incarnation: int
    step: int
    wait_seconds: float = 0.0
    told_seconds: float | None = None


class DataRow(Message, frozen=True, kw_only=True):
    """One row of an offline algorithm's batch."""

    ordinal: int
    row: Row


class Batch(Message, frozen=True, kw_only=True):
    """The batch of one step, or why there is none yet.

    Exactly one of these holds: ``stop`` is set (save an anchor, report the outcome, end;
    where ``save_seconds`` is set, save only what is durable by then);
    ``waiting`` is set (ask again; it names whom the run waits for); or the batch is complete.
    ``groups`` (generated) or ``rows`` (offline) are in data order. ``ids[i]`` names, in sample order,
    the trajectories of ``groups[i]``, or holds the one id of ``rows[i]``: what a commit lists as
    consumed. Groups whose samples were all excluded are absent and counted in ``num_excluded``.
    ``store_again`` (with ``waiting``): the committed version cannot be had from the store; store it whole and
    say so before asking again. ``held_out`` rows are measured after the step, where one is due. ``anchor_every_steps`` is what
    ``snapshots`` asks for now; None: as the learner began.
    """

    step: int
    ids: tuple[tuple[str, ...], ...] = ()
    groups: tuple[TrajectoryGroup, ...] = ()
    rows: tuple[DataRow, ...] = ()
    held_out: tuple[DataRow, ...] = ()
    cursor: Cursor | None = None
    num_excluded: int = 0
    waiting: str | None = None
    stop: str | None = None
    save_seconds: float | None = None
    store_again: bool = False
    anchor_every_steps: int | None = None


class ReplayRequest(Message, frozen=True, kw_only=True):
    """Ask for the recorded batch of a committed step of the live lineage."""

    worker: str
    incarnation: int
    step: int


class Commit(Message, frozen=True, kw_only=True):
    """One step is done and its version's object stored. Idempotent for an equal commit.

    ``consumed``: the ids of the batch in the order in which they were consumed. ``plan``: whatever
    replay needs beside the bodies (the micro-batch plan). ``cursor``: as given in the batch.
    ``filtered`` maps ids of the batch that the learner left out to the reason (``length``).
    """

    worker: str
    incarnation: int
    step: int
    lineage: int
    consumed: tuple[str, ...]
    plan: dict[str, Any]
    version: WeightVersion
    chain: str
    cursor: Cursor
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    phase_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    filtered: dict[str, str] = msgspec.field(default_factory=dict)


class Committed(Message, frozen=True, kw_only=True):
    """``accepted`` is True once the step is durable; ``stop`` as in ``Batch``."""

    accepted: bool
    stop: str | None = None


class AnchorSaved(Message, frozen=True, kw_only=True):
    """``manifest`` is durable on disk."""

    worker: str
    incarnation: int
    manifest: AnchorManifest


class Fork(Message, frozen=True, kw_only=True):
    """Replay met a digest that is not the committed one: open a new lineage after ``step``.

    ``step`` is the last step whose state the learner holds and ``version`` that state's weights under
    the new lineage (its ``lineage`` field is ignored), object already stored.
    """

    worker: str
    incarnation: int
    step: int
    version: WeightVersion
    chain: str
    reason: str


class Forked(Message, frozen=True, kw_only=True):
    """The lineage to go on with; the next step is ``Fork.step + 1``."""

    lineage: int


class StoredAgain(Message, frozen=True, kw_only=True):
    """The weights of the committed version lie in another object, which is in the store."""

    worker: str
    incarnation: int
    version: WeightVersion


class Failed(Message, frozen=True, kw_only=True):
    """The learner cannot go on (out of memory, NaN loss): the run stops with ``message``."""

    worker: str
    incarnation: int
    kind: str
    message: str


class Refusal(Message, frozen=True, kw_only=True):
    """Body of every answer that is not 200. ``error`` is a class name of ``rollout.errors``."""

    error: str
    message: str
