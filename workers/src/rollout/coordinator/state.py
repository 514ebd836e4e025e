"""The coordinator's picture of the run: a cache of the ledger, plus what nobody needs after a crash.

Everything that matters is written to the ledger first and mirrored here after it is durable, so this
state can be dropped at any instant and rebuilt. Liveness (who was heard when) is not durable: after a
restart every worker is given one lease term to be heard again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rollout.codec import decode_body, encode_trajectories
from rollout.coordinator.memory.writes import with_writes
from rollout.coordinator.rules.batch_selection import GroupView
from rollout.coordinator.rules.evaluation import EvaluationResult
from rollout.coordinator.rules.learning import STEPS, StepSignal, observe_signal
from rollout.ledger.records import (
    Admission,
    AnchorManifest,
    Disposition,
    DispositionKind,
    Freed,
    Lease,
    LedgerState,
    NewEvaluation,
    NewTask,
    SampleRow,
    StoredGroup,
    TaskState,
)
from rollout.protocol.messages import Cursor, TaskProgress
from rollout.protocol.status import RunOutcome
from rollout.turns import further_rows
from rollout.types import Trajectory, TrajectoryGroup, WeightVersion

LEARNER = "learner"
"""The learner's name in the ledger, whatever its process is called."""
INFRASTRUCTURE = "infrastructure"
"""The reason of samples that are excluded."""

Key = tuple[str, str, int, int]
"""(name, split, lineage, step) of an evaluation."""


@dataclass(slots=True, kw_only=True)
class Group:
    """An admitted training task that no step has taken. ``packed`` is its TrajectoryGroup in msgpack.

    ``entered_at``: when a refill came in, on the coordinator's clock; 0 for those a version let in.
    """

    task: NewTask
    state: TaskState = "open"
    lease: Lease | None = None
    samples: tuple[SampleRow, ...] = ()
    packed: bytes = b""
    oldest_step: int | None = None
    entered_at: float = 0.0
    _view: GroupView | None = None

    @property
    def lost(self) -> frozenset[int]:
        """Samples that infrastructure failures took from a group that goes on without them."""
        if not self.samples:
            return frozenset()
        return frozenset(range(self.task.num_samples)) - {one.sample for one in self.samples}

    def dispose(self, kind: DispositionKind, reason: str) -> list[Disposition]:
        """One disposition a sample: ``kind``, or ``excluded`` for those that were lost."""
        lost = self.lost
        return [
            Disposition(
                task_id=self.task.task_id,
                sample=sample,
                kind="excluded" if sample in lost else kind,
                reason=INFRASTRUCTURE if sample in lost else reason,
            )
            for sample in range(self.task.num_samples)
        ]

    def view(self) -> GroupView:
        """What decisions need. Rewards only come with a change of state."""
        if self._view is None or self._view.state != self.state:
            rewards = tuple(sample.reward for sample in self.samples)
            self._view = GroupView(state=self.state, rewards=rewards, oldest_step=self.oldest_step)
        return self._view


@dataclass(slots=True, kw_only=True)
class EvaluationRun:
    """One evaluation of one version on its way; ``rewards`` by prompt position.

    ``num_before``: prompts that had theirs when this coordinator began.
    """

    key: Key
    num_tasks: int
    leased: dict[int, Lease] = field(default_factory=dict)
    rewards: dict[int, tuple[float, ...]] = field(default_factory=dict)
    lengths: dict[int, tuple[int, ...]] = field(default_factory=dict)
    excluded: set[int] = field(default_factory=set)
    summary: dict[str, Any] | None = None
    num_before: int = 0

    @property
    def num_answered(self) -> int:
        """Prompts with completions."""
        return len(self.rewards) if self.summary is None else self.summary.get("num_prompts", 0)

    @property
    def num_excluded(self) -> int:
        """Prompts that no actor could answer."""
        return len(self.excluded)

    @property
    def num_tokens(self) -> int:
        """Tokens of all completions."""
        if self.summary is not None:
            return self.summary.get("num_tokens", 0)
        return sum(sum(lengths) for lengths in self.lengths.values())

    @property
    def num_resolved(self) -> int:
        """Prompts that need nothing more."""
        return len(self.rewards) + len(self.excluded)

    @property
    def num_open(self) -> int:
        """Prompts that nobody works on."""
        return self.num_tasks - self.num_resolved - len(self.leased) if self.summary is None else 0


@dataclass(slots=True, kw_only=True)
class Worker:
    """A process as last heard of, on the coordinator's monotonic clock.

    ``num_wrong``: loads whose digest was not the version's; ``wrong_in_a_row`` since the last good one;
    ``aside_since`` when these became too many.
    """

    name: str
    role: str
    incarnation: int
    seen_at: float
    state: str = ""
    step: int | None = None
    loaded: WeightVersion | None = None
    outcome: str | None = None
    trouble: str = ""
    progress: tuple[TaskProgress, ...] = ()
    pace: float = 0.0
    num_wrong: int = 0
    wrong_in_a_row: int = 0
    aside_since: float = 0.0
    num_rebuilt: int = 0
    plugins: str = ""


@dataclass(slots=True, kw_only=True)
class RunState:
    """Mutable; owned by the event loop's thread.

    ``incarnations``: of the workers that had registered before this coordinator began. Since it did: ``tokens`` of samples by how they ended, and how many ``unfinished`` ones did.
    ``open_ordinals``: of the ``groups`` that nobody works on, kept with them.
    """

    lineage: int = 0
    ancestry: tuple[tuple[int, int | None], ...] = ((0, None),)
    step: int = 0
    chain: str = ""
    cursor: Cursor = field(default_factory=lambda: Cursor(next_ordinal=0))
    version: WeightVersion | None = None
    next_admitted: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    evaluations: dict[Key, EvaluationRun] = field(default_factory=dict)
    versions: dict[tuple[int, int], WeightVersion] = field(default_factory=dict)
    anchors: list[AnchorManifest] = field(default_factory=list)
    dead_anchors: tuple[AnchorManifest, ...] = ()
    handed: tuple[str, ...] = ()
    incarnations: Mapping[str, int] = field(default_factory=dict)
    dispositions: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    unfinished: Counter[str] = field(default_factory=Counter)
    recent: list[dict[str, Any]] = field(default_factory=list)
    signals: list[StepSignal] = field(default_factory=list)
    tracked_step: int = -1
    outcome: RunOutcome | None = None
    stopping: str | None = None
    workers: dict[str, Worker] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    step_ended_at: float | None = None
    step_seconds: float | None = None
    open_ordinals: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.open_ordinals = {n for n, group in self.groups.items() if group.state == "open"}

    # -- reading ----------------------------------------------------------------------------------

    def views(self) -> dict[int, GroupView]:
        """The window as decisions see it."""
        return {ordinal: group.view() for ordinal, group in self.groups.items()}

    def num_open(self) -> int:
        """Tasks that an actor could start now."""
        return len(self.open_ordinals) + sum(run.num_open for run in self.evaluations.values())

    def results(self) -> list[EvaluationResult]:
        """Finished evaluations of the live chain."""
        return [
            EvaluationResult(
                name=name, split=split, lineage=lineage, step=step, summary=run.summary
            )
            for (name, split, lineage, step), run in self.evaluations.items()
            if run.summary is not None
            and "dropped" not in run.summary
            and self._is_live(lineage, step)
        ]

    def _is_live(self, lineage: int, step: int) -> bool:
        """Whether a version is of the live chain, and not of steps that a fork has left behind."""
        bounds = dict(self.ancestry)
        if lineage not in bounds:
            return False
        bound = bounds[lineage]
        return bound is None or step <= bound

    def pending_evaluations(self) -> list[EvaluationRun]:
        """Evaluations without a result."""
        return [run for run in self.evaluations.values() if run.summary is None]

    # -- mirroring what the ledger has accepted ---------------------------------------------------

    def admit(self, admission: Admission) -> None:
        """Tasks have entered."""
        for task in admission.tasks:
            if task.ordinal not in self.groups:
                self.groups[task.ordinal] = Group(task=task)
                self.open_ordinals.add(task.ordinal)
        self.next_admitted = max(self.next_admitted, admission.next_admitted)
        for evaluation in admission.evaluations:
            self._add_evaluation(evaluation)

    def _add_evaluation(self, new: NewEvaluation) -> None:
        key = (new.name, new.split, new.lineage, new.step)
        self.evaluations.setdefault(key, EvaluationRun(key=key, num_tasks=len(new.tasks)))

    def lease(self, lease: Lease) -> None:
        """A task is in somebody's hands."""
        self.leases[lease.task.task_id] = lease
        if lease.task.kind == "eval":
            run = self.evaluations.get(evaluation_key(lease.task))
            if run is not None:
                run.leased[lease.task.ordinal] = lease
        elif (group := self.groups.get(lease.task.ordinal)) is not None:
            group.state, group.lease = "leased", lease
            self.open_ordinals.discard(lease.task.ordinal)

    def release(self, task: NewTask, state: TaskState) -> None:
        """A task left its worker's hands without a result."""
        self.leases.pop(task.task_id, None)
        if task.kind == "eval":
            run = self.evaluations.get(evaluation_key(task))
            if run is not None:
                run.leased.pop(task.ordinal, None)
                if state == "excluded":
                    run.excluded.add(task.ordinal)
        elif (group := self.groups.get(task.ordinal)) is not None:
            group.state, group.lease = state, None
            if state == "open":
                self.open_ordinals.add(task.ordinal)
            else:
                self.open_ordinals.discard(task.ordinal)

    def free(self, freed: Freed) -> None:
        """Workers vanished."""
        for task_id in freed.opened:
            if task_id in self.leases:
                self.release(self.leases[task_id].task, "open")
        for task_id in freed.excluded:
            if task_id in self.leases:
                self.release(self.leases[task_id].task, "excluded")

    def finish_task(
        self, task: NewTask, samples: tuple[SampleRow, ...], packed: bytes, oldest_step: int | None
    ) -> None:
        """A task's samples are durable; ``packed`` are its trajectories in msgpack."""
        self.leases.pop(task.task_id, None)
        if task.kind == "eval":
            run = self.evaluations.get(evaluation_key(task))
            if run is not None:
                run.leased.pop(task.ordinal, None)
                run.rewards[task.ordinal] = tuple(sample.reward for sample in samples)
                run.lengths[task.ordinal] = tuple(sample.num_tokens for sample in samples)
        elif (group := self.groups.get(task.ordinal)) is not None:
            group.state, group.lease, group.samples = "done", None, samples
            self.open_ordinals.discard(task.ordinal)
            group.packed = pack_group(task.ordinal, packed)
            group.oldest_step = oldest_step

    def take_groups(self, ordinals: Iterable[int]) -> list[Group]:
        """Groups that a step has closed, and their leases, are not needed any more; those of ``ordinals`` that were here."""
        found = [(n, self.groups.pop(n)) for n in tuple(ordinals) if n in self.groups]
        for ordinal, group in found:
            self.open_ordinals.discard(ordinal)
            self.leases.pop(group.task.task_id, None)
        return [group for _, group in found]

    def remember_step(self, metrics: dict[str, Any], signal: StepSignal | None) -> None:
        """Keep the last few steps for detectors and displays."""
        self.recent = [*self.recent[-STEPS:], metrics]
        if signal is not None:
            self.signals = [*self.signals[1 - STEPS :], signal]


def evaluation_key(task: NewTask) -> Key:
    """The evaluation that an evaluation task belongs to."""
    return (task.evaluation, task.split, task.lineage, task.step)


def pack_group(ordinal: int, packed: bytes) -> bytes:
    """A TrajectoryGroup in msgpack around its trajectories, which are that already; sent as it is."""
    made: Any = msgspec.Raw(packed)
    return msgspec.msgpack.encode(TrajectoryGroup(ordinal=ordinal, trajectories=made))


def find_oldest_step(trajectories: Iterable[Trajectory]) -> int | None:
    """The step of the version of the oldest token; None of trajectories without any."""
    rows = (*(made := [*trajectories]), *further_rows(made))
    return min((span.step for row in rows for span in row.spans), default=None)


def build_state(stored: LedgerState, *, pools_rewards: bool = False) -> RunState:
    """The picture as the ledger has it, nobody heard of yet. ``pools_rewards`` as in the plan."""
    head, initial = stored.head, stored.initial
    state = RunState(
        lineage=stored.lineage,
        ancestry=stored.ancestry,
        step=0 if head is None else head.step,
        cursor=Cursor(
            next_ordinal=stored.first_waiting,
            exhausted=head is not None and head.cursor.exhausted,
        ),
        next_admitted=stored.next_admitted,
        groups={group.task.ordinal: _group(group) for group in stored.groups},
        versions={(v.lineage, v.step): v for v in stored.versions},
        anchors=list(stored.anchors),
        dead_anchors=stored.dead_anchors,
        handed=stored.handed,
        incarnations=stored.incarnations,
        dispositions=Counter(stored.dispositions),
        recent=list(stored.recent_metrics[-STEPS:]),
        tracked_step=stored.tracked_step,
        outcome=_outcome(stored.outcome),
    )
    signals = [observe_signal(step, pooled=pools_rewards) for step in stored.recent_rewards]
    state.signals = [signal for signal in signals if signal is not None][-STEPS:]
    state.chain = stored.initial_chain if head is None else head.chain
    # After a fork the base step was committed by the parent; the policy is the fork's own version.
    own = state.versions.get((stored.lineage, state.step))
    state.version = own or (initial if head is None else head.version)
    for old in stored.evaluations:
        key = (old.name, old.split, old.lineage, old.step)
        state.evaluations[key] = EvaluationRun(
            key=key,
            num_tasks=old.num_tasks,
            rewards=dict(old.rewards),
            lengths=dict(old.lengths),
            excluded=set(old.excluded),
            summary=old.summary,
            num_before=len(old.rewards),
        )
    for lease in (*stored.eval_leases, *(group.lease for group in stored.groups)):
        if lease is not None:
            state.lease(lease)
    return state


def _group(stored: StoredGroup) -> Group:
    made = () if stored.body is None else decode_body(stored.body)
    return Group(
        task=stored.task,
        state=stored.state,
        lease=stored.lease,
        samples=with_writes(stored.samples, made),
        packed=pack_group(stored.task.ordinal, encode_trajectories(made)) if made else b"",
        oldest_step=find_oldest_step(made),
    )


def _outcome(stored: Mapping[str, str] | None) -> RunOutcome | None:
    if stored is None:
        return None
    return RunOutcome(kind=stored["kind"], reason=stored["reason"], message=stored["message"])
