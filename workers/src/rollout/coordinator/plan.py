"""What a run's coordinator has to know, as plain data: numbers from the spec, nothing to look up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rollout.coordinator.rules.autoscaling import ActorBounds
from rollout.coordinator.rules.drift import DriftBounds
from rollout.evaluations.metrics import Metric
from rollout.models.experts.families import ExpertShape
from rollout.types import Row, SamplingParams

Split = Literal["selection", "report"]
HELD_OUT = ("held-out", "report")
"""Name and split under which ``TaskRows.evaluation`` gives the held-out rows of an offline run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The low end of ``metric``'s confidence interval must reach ``lower_bound``."""

    metric: str
    """Which measure of the evaluation."""
    lower_bound: float
    """What the low end must reach."""
    fails: bool
    """The run fails at its end where it is missed; else that is a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """One evaluation."""

    name: str
    """Its name in reports."""
    split: Split
    """``selection`` may choose the best version; ``report`` is looked at, never chosen by."""
    num_prompts: int
    """Rows of its suite."""
    samples_per_prompt: int
    """Completions of each."""
    sampling: SamplingParams
    """How they are sampled."""
    at_start: bool = False
    """Measured before the first step."""
    every_steps: int | None = None
    """Measured after every so many steps; None: only at start and end as asked."""
    at_end: bool = True
    """Measured after the last step."""
    selects: bool = False
    """Its metric chooses the best version."""
    metric: str = "accuracy"
    """What is compared between versions."""
    gate: Gate | None = None
    """What it must reach."""
    metrics: tuple[Metric, ...] = ()
    """What its suite measures beside accuracy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPlan:
    """Rows that are never learned from, measured after every so many steps and after the last."""

    num_rows: int
    """How many there are."""
    every_steps: int
    """Steps between two measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerPlan:
    """What is done about slow groups; see ``train.stragglers``."""

    steal_margin_seconds: float = 5.0
    """How much sooner another worker must end a group for it to be moved there."""
    deadline_factor: float = 4.0
    """A group is overdue after so many times what the longest hundredth of samples takes at its actor's pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """What a step takes and when there is an end: ``spec.train``."""

    tasks_per_step: int
    """Tasks (prompts or rows) that a step takes."""
    num_samples: int
    """Completions of a task."""
    sampling: SamplingParams
    """How training tasks are sampled."""
    offline: bool = False
    """Tasks are rows that nobody samples."""
    staleness_max: int = 0
    """Steps that a sample may be behind the version it trains."""
    steps_max: int | None = None
    """Last step; None: no bound."""
    num_tasks: int | None = None
    """Tasks that the data has over all epochs; None: no bound."""
    short_tail: bool = False
    """The data's last tasks are a smaller step; else they are dropped."""
    waves_max: int | None = None
    """Waves of dynamic sampling; None: there is none."""
    samples_min: int | None = None
    """After ``limits.attempts_max`` tries a group goes on with so many samples; None: it is whole or excluded."""
    pools_rewards: bool = False
    """What a step teaches depends on its rewards together, not on those of each group (a critic is the baseline)."""
    learns_from_reward: bool = True
    """False: a teacher says what is learned."""
    extra_groups: int = 0
    """Groups that a step asks for beyond those it takes."""
    stragglers: StragglerPlan | None = None
    """How slow groups are moved; None: nothing is moved for being slow."""
    held_out: HeldOutPlan | None = None
    """What an offline run measures itself on."""
    branches: bool = False
    """Whether a sample may have several rows: its episode went on elsewhere than behind its last reply."""
    experts: ExpertShape | None = None
    """Experts of the policy, whose routes every training sample must tell; None: samples tell none."""

    @property
    def groups_per_step(self) -> int:
        """Groups of the data that a step closes: those it takes, and those it asked for besides."""
        return self.tasks_per_step + self.extra_groups

    @property
    def tasks_total(self) -> int | None:
        """Ordinals that some step may take; None: no bound."""
        data = self.num_tasks
        if data is not None and not self.short_tail and self.waves_max is None:
            data -= data % self.groups_per_step
        steps = None if self.steps_max is None else self.steps_max * self.groups_per_step
        if self.waves_max is not None:
            return data
        bounds = [bound for bound in (data, steps) if bound is not None]
        return min(bounds) if bounds else None

    @property
    def steps_total(self) -> int | None:
        """The last step as far as it is known; dynamic sampling may exhaust the data before it."""
        if self.waves_max is not None or self.tasks_total is None:
            return self.steps_max
        return -(-self.tasks_total // self.groups_per_step)

    def measures_after(self, step: int) -> bool:
        """Whether held-out rows are measured after this step."""
        if self.held_out is None:
            return False
        return step % self.held_out.every_steps == 0 or step == self.steps_total


@dataclass(frozen=True, slots=True, kw_only=True)
class InferPlan:
    """What an inference run answers: ``spec.infer``."""

    num_rows: int
    """Rows of the data, those included that are refused."""
    num_refused: int
    """Rows that are not asked: broken ones, and those that do not fit the model."""
    failed_ratio_max: float
    """The run fails where a larger share of its rows has no completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsPlan:
    """Bounds on waiting and on trouble: ``spec.limits``."""

    attempts_max: int = 5
    """Tries of a sample that infrastructure takes."""
    sample_wait_seconds: float = 1800.0
    """How long a step waits for a sample before its group is expired; not read where ``numerics.exact``."""
    full_seconds: float = 900.0
    """How long a full disk is borne."""
    drift: DriftBounds = field(default_factory=lambda: DriftBounds(warn=0.05))
    """Of the KL between actors and learner, in nats a token."""
    retokenised: DriftBounds = field(default_factory=lambda: DriftBounds(warn=0.5))
    """Of the share of samples whose text, encoded again, would be other tokens."""
    reward_divergence_stops: bool = False
    """Whether the run stops where reward and selecting evaluation have parted; else that is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsPlan:
    """How the run repeats itself: ``spec.numerics``."""

    exact: bool = True
    """Nothing may depend on time: a missing sample is waited for, never expired."""
    grade: str = "exact"
    """What a repetition may promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsPlan:
    """When anchors are saved and kept: ``spec.snapshots``."""

    anchors_kept: int = 3
    """The newest so many are kept."""
    weights_place: str = ""
    """Where whoever serves them finds the weights of anchors, whole; empty: nowhere."""
    anchor_every_steps: int | None = None
    """Steps between two anchors; None: as the learner's own configuration says."""
    replay_steps_max: int | None = None
    """Most steps that may be committed after the last anchor that was reported; None: nothing bounds them."""
    saves_on_notice: bool = False
    """A learner that is told to go before its time saves an anchor first, where there is time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlan:
    """What the ledger lets go of: ``spec.storage``."""

    bodies_behind: int | None = None
    """Steps kept behind the oldest anchor; None: all bodies are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPlan:
    """The learner's pods: ``spec.learner``."""

    nodes: int = 1
    """Pods that are waited for together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run; its parts have the names of the spec's."""

    name: str
    """The run's name."""
    uid: str
    """The run's identity in the cluster or on the laptop."""
    train: TrainPlan
    """What is learned, from what, until when."""
    trains: bool = True
    """Whether there are steps. False: version 0 answers rows or is measured, and no learner lives."""
    limits: LimitsPlan = field(default_factory=LimitsPlan)
    """Bounds on waiting and on trouble."""
    numerics: NumericsPlan = field(default_factory=NumericsPlan)
    """How the run repeats itself."""
    snapshots: SnapshotsPlan = field(default_factory=SnapshotsPlan)
    """When anchors are saved and kept."""
    storage: StoragePlan = field(default_factory=StoragePlan)
    """What the ledger lets go of."""
    learner: LearnerPlan = field(default_factory=LearnerPlan)
    """The learner's pods."""
    actors: ActorBounds | None = None
    """Bounds of their number where it follows the learner, or the rows that are left."""
    evaluations: tuple[EvaluationPlan, ...] = ()
    """What is measured; of an inference run, its rows."""
    infer: InferPlan | None = None
    """What an inference run answers; None: the run trains, or is measured."""
    lease_seconds: float = 30.0
    """How long a worker holds a task without a heartbeat."""
    heartbeat_seconds: float = 2.0
    """Seconds between two heartbeats."""
    attempt: int = 1
    """How often the run was started."""
    generation: int = 0
    """Of the manifest that the run was begun with or last changed to."""

    @property
    def weights_are_read(self) -> bool:
        """Whether anybody but an anchor may load the weights of any step."""
        return not self.train.offline or bool(self.evaluations)


class TaskRows(Protocol):
    """Where the rows of tasks come from. May read files; called outside the event loop."""

    def train(self, ordinals: Sequence[int]) -> Sequence[Row]:
        """The rows of training tasks. Raises DataError."""
        ...

    def evaluation(self, name: str, split: str, positions: Sequence[int]) -> Sequence[Row]:
        """The rows of an evaluation's prompts. Raises DataError."""
        ...
