"""What actors and the coordinator say to each other: tasks, their results, weights loaded."""

from __future__ import annotations

from typing import Literal

from rollout.ledger.records import FailureKind, MemoryPart
from rollout.protocol.messages.base import WireMessage
from rollout.types import Prefix, Row, SamplingParams, Trajectory, WeightVersion

TaskKind = Literal["train", "eval"]


class Register(WireMessage, frozen=True, kw_only=True):
    """An actor process has started."""

    pid: int = 0
    """Of its process, for people; 0: not said."""
    host: str = ""
    """Where it runs, for people."""


class Registered(WireMessage, frozen=True, kw_only=True):
    """What an actor's process is and how long it may be silent."""

    incarnation: int
    """Goes with every later call; leases of older ones are taken back."""
    lease_seconds: float
    """A worker that is silent for so long loses its tasks."""
    heartbeat_seconds: float
    """Between two heartbeats."""


class Claim(WireMessage, frozen=True, kw_only=True):
    """Ask for work."""

    tasks_max: int
    """Most tasks to hand out now, beside those held."""
    held: tuple[str, ...] = ()
    """Every task that the actor already works on: a task that was handed out in an answer that never arrived is
    handed out again, which makes a repeated claim harmless."""
    loaded: tuple[int, int] | None = None
    """(lineage, step) now in the engine; None: nothing."""
    wait_seconds: float = 0.0
    """How long the answer may wait for work."""


class Task(WireMessage, frozen=True, kw_only=True):
    """One whole group to sample: ``num_samples`` completions of one prompt, under one lease.

    Seeds are ``derive_seed(spec.seed, noise_domain, noise_ordinal, sample)`` and do not depend on the attempt.
    """

    task_id: str
    """Unique in the run; the same in every attempt."""
    kind: TaskKind
    """Whether a step or an evaluation takes it."""
    ordinal: int
    """Task ordinal (train) or place in ``split`` (eval), from 0."""
    row: Row
    """What environment and rewards see."""
    num_samples: int
    """G, the completions of the prompt."""
    attempt: int
    """Tries so far, this one included, from 1."""
    epoch: int
    """The fence that a submit must repeat."""
    lease_seconds: float
    """How long the actor holds it without a heartbeat."""
    version: WeightVersion
    """That all tokens must come from, those behind a prefix too."""
    sampling: SamplingParams
    """The same for all samples."""
    noise_domain: str = "train"
    """``train``, or ``eval/NAME/STEP``: no two share noise."""
    noise_ordinal: int | None = None
    """None: ``ordinal``; a row of a batch has its number in the data, in whatever order rows are handed out."""
    goes_on: bool = False
    """The one message of the row is a text that the model goes on with, or that is embedded, without a chat template."""
    shows_answer: bool = False
    """The row's conversation ends with the answer, which is scored."""
    evaluation: str | None = None
    """Name of the evaluation that it is of; None: of none."""
    split: str = "train"
    """Of that evaluation."""
    prefixes: tuple[Prefix, ...] = ()
    """Samples with an entry go on behind it, drawing from the seed of its segment."""


class Claimed(WireMessage, frozen=True, kw_only=True):
    """Work, or the end of it."""

    tasks: tuple[Task, ...] = ()
    """At most ``Claim.tasks_max``; empty: nothing came in time."""
    stop: bool = False
    """No more work will come: report the outcome and end."""
    reason: str = ""
    """Why it stops."""


class Failure(WireMessage, frozen=True, kw_only=True):
    """Why an attempt gave no trajectories."""

    kind: FailureKind
    """``infrastructure``: node, network, engine; retried with the same noise, bounded, then excluded. ``data``: user
    code raised, hung or returned no finite number; tried once more, then the run stops. ``returned``: the actor is
    leaving and hands the task back; not counted as a try."""
    message: str
    """Of ``data`` it must name the reward or environment and the row."""


class TaskResult(WireMessage, frozen=True, kw_only=True):
    """The end of one attempt: all ``num_samples`` trajectories, by sample index, or a failure."""

    task_id: str
    """As in ``Task``."""
    epoch: int
    """As in ``Task``; an older one is refused."""
    trajectories: tuple[Trajectory, ...] = ()
    """Of a failure of kind ``infrastructure`` those of the samples that it did not reach."""
    failure: Failure | None = None
    """None: the attempt is whole."""
    prefixes: tuple[Prefix, ...] = ()
    """Of a failure of kind ``returned`` the beginnings of samples, by sample index."""


class Submit(WireMessage, frozen=True, kw_only=True):
    """Results of one or more tasks. Idempotent: repeating an accepted result is accepted again."""

    results: tuple[TaskResult, ...]
    """At least one."""


class Submitted(WireMessage, frozen=True, kw_only=True):
    """What became of the results of a ``Submit``, in their order."""

    accepted: tuple[bool, ...]
    """True: it is durable."""
    reasons: tuple[str, ...]
    """Why not; empty where it was accepted."""


class Activation(WireMessage, frozen=True, kw_only=True):
    """An actor loaded a version, or could not."""

    version: WeightVersion
    """The one that was asked for."""
    digest: str
    """Over the tensors given to the engine's loader."""
    ok: bool
    """False: it was not loaded, or ``digest`` is not the version's."""
    seconds: float
    """What fetching, verifying and loading took."""
    message: str = ""
    """Why it failed."""
    num_rebuilt: int = 0
    """How often this process has rebuilt its copy of the weights from a dense base."""


class ReadMemory(WireMessage, frozen=True, kw_only=True):
    """Ask for what environments keep, as of a version."""

    lineage: int
    """Of the version."""
    step: int
    """Of the version."""
    after: tuple[int, int, int, str] = (0, 0, 0, "")
    """Step, ordinal, sample and key of the last row that is known; the rows behind it are given."""


class MemoryRead(WireMessage, frozen=True, kw_only=True):
    """Some of it."""

    part: MemoryPart
    """Rows in their order."""
