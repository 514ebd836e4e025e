"""What actors and the coordinator say to each other: tasks, their results, weights loaded."""

from __future__ import annotations

from typing import Literal

from rollout.ledger.records import FailureKind
from rollout.protocol.messages.base import WireMessage
from rollout.types import Prefix, Row, SamplingParams, Trajectory, WeightVersion

TaskKind = Literal["train", "eval"]


class Register(WireMessage, frozen=True, kw_only=True):
    """An actor process has started."""

    pid: int = 0
    host: str = ""


class Registered(WireMessage, frozen=True, kw_only=True):
    """``incarnation`` must go with every later call; leases of older ones are taken back."""

    incarnation: int
    lease_seconds: float
    heartbeat_seconds: float


class Claim(WireMessage, frozen=True, kw_only=True):
    """Ask for work.

    ``held`` lists every task the actor already works on: a task that was handed out in an answer
    that never arrived is handed out again, which makes a repeated claim harmless.
    ``loaded`` is the (lineage, step) now in the engine. Waits up to ``wait_seconds`` for work.
    """

    tasks_max: int
    held: tuple[str, ...] = ()
    loaded: tuple[int, int] | None = None
    wait_seconds: float = 0.0


class Task(WireMessage, frozen=True, kw_only=True):
    """One whole group to sample: ``num_samples`` completions of one prompt, under one lease.

    Seeds are ``derive_seed(spec.seed, noise_domain, noise_ordinal, sample)`` and do not depend on the
    attempt. All tokens must come from ``version``. ``ordinal`` is the task ordinal (train) or the
    position in ``split`` (eval). ``noise_ordinal`` None: ``ordinal``; a row of a batch has its number in the data,
    in whatever order rows are handed out. ``goes_on``: the one message of the row is a text that the model goes on
    with, or that is embedded, without a chat template. ``shows_answer``: the row's conversation ends with the answer, which is
    scored. ``epoch`` is the fence that a submit must repeat. Samples with an entry
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
    noise_ordinal: int | None = None
    goes_on: bool = False
    shows_answer: bool = False
    evaluation: str | None = None
    split: str = "train"
    prefixes: tuple[Prefix, ...] = ()


class Claimed(WireMessage, frozen=True, kw_only=True):
    """``stop`` means: no more work will come, report the outcome and end. ``reason`` says why."""

    tasks: tuple[Task, ...] = ()
    stop: bool = False
    reason: str = ""


class Failure(WireMessage, frozen=True, kw_only=True):
    """Why an attempt gave no trajectories.

    ``infrastructure``: node, network, engine; retried with the same noise, bounded, then excluded.
    ``data``: user code raised, hung or returned no finite number; tried once more, then the run
    stops with ``message``, which must name the reward or environment and the row.
    ``returned``: the actor is leaving and hands the task back; not counted as a try.
    """

    kind: FailureKind
    message: str


class TaskResult(WireMessage, frozen=True, kw_only=True):
    """The end of one attempt: all ``num_samples`` trajectories, by sample index, or a failure.

    A failure of kind ``infrastructure`` may bring the trajectories of the samples that it did not reach,
    one of kind ``returned`` the beginnings of samples, by sample index.
    """

    task_id: str
    epoch: int
    trajectories: tuple[Trajectory, ...] = ()
    failure: Failure | None = None
    prefixes: tuple[Prefix, ...] = ()


class Submit(WireMessage, frozen=True, kw_only=True):
    """Results of one or more tasks. Idempotent: repeating an accepted result is accepted again."""

    results: tuple[TaskResult, ...]


class Submitted(WireMessage, frozen=True, kw_only=True):
    """``accepted[i]`` and, where False, ``reasons[i]`` for ``results[i]``. Accepted means durable."""

    accepted: tuple[bool, ...]
    reasons: tuple[str, ...]


class Activation(WireMessage, frozen=True, kw_only=True):
    """An actor loaded ``version``; ``digest`` is over the tensors given to the engine's loader.

    ``num_rebuilt``: how often this process has made its copy of the weights anew from a dense base.
    """

    version: WeightVersion
    digest: str
    ok: bool
    seconds: float
    message: str = ""
    num_rebuilt: int = 0
