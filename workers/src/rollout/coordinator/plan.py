"""What a run's coordinator has to know, as plain data: numbers from the spec, nothing to look up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rollout.coordinator.rules.autoscaling import ActorBounds
from rollout.coordinator.rules.drift import DriftBounds
from rollout.types import Row, SamplingParams

Split = Literal["selection", "report"]
HELD_OUT = ("held-out", "report")
"""Name and split under which ``TaskRows.evaluation`` gives the held-out rows of an offline run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The low end of ``metric``'s confidence interval must reach ``lower_bound``."""

    metric: str
    lower_bound: float
    fails: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """One evaluation. ``every_steps`` None: only at start and end as asked."""

    name: str
    split: Split
    num_prompts: int
    samples_per_prompt: int
    sampling: SamplingParams
    at_start: bool = False
    every_steps: int | None = None
    at_end: bool = True
    selects: bool = False
    metric: str = "accuracy"
    gate: Gate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPlan:
    """Rows that are never learned from, measured after every so many steps and after the last."""

    num_rows: int
    every_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerPlan:
    """What is done about slow groups; see ``train.stragglers``."""

    steal_margin_seconds: float = 5.0
    deadline_factor: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One training run.

    A step takes ``tasks_per_step`` tasks of ``num_samples`` samples; ``offline`` tasks are rows that
    nobody samples. ``num_tasks`` and ``steps_max`` None: no bound. ``waves_max`` None: no dynamic
    sampling. ``pools_rewards``: what a step teaches depends on its rewards together, not on those of
    each group (a critic is the baseline). ``learns_from_reward`` False: a teacher says what is
    learned. ``exact``: nothing may depend on time, so a missing sample is waited for, never expired.
    After ``attempts_max`` tries a group goes on with the samples that infrastructure trouble spared, if
    they are ``samples_min`` at least; None: a group is whole or excluded. ``actors`` is there when
    the number of actors follows the learner. ``learner_nodes`` pods of the learner are waited for together.
    A learner that is told to go before its time saves an anchor first, where ``saves_on_notice`` and there is time.
    A full disk is borne for ``full_seconds``.
    A step asks for ``extra_groups`` more than it takes. ``stragglers`` None: nothing is moved for being slow.
    """

    name: str
    uid: str
    tasks_per_step: int
    num_samples: int
    sampling: SamplingParams
    offline: bool = False
    staleness_max: int = 0
    steps_max: int | None = None
    num_tasks: int | None = None
    short_tail: bool = False
    waves_max: int | None = None
    samples_min: int | None = None
    attempts_max: int = 5
    pools_rewards: bool = False
    learns_from_reward: bool = True
    exact: bool = True
    grade: str = "exact"
    sample_wait_seconds: float = 1800.0
    full_seconds: float = 900.0
    lease_seconds: float = 30.0
    heartbeat_seconds: float = 2.0
    anchors_kept: int = 3
    anchor_every_steps: int | None = None
    saves_on_notice: bool = False
    learner_nodes: int = 1
    attempt: int = 1
    generation: int = 0
    evaluations: tuple[EvaluationPlan, ...] = ()
    held_out: HeldOutPlan | None = None
    actors: ActorBounds | None = None
    extra_groups: int = 0
    stragglers: StragglerPlan | None = None
    drift: DriftBounds = field(default_factory=lambda: DriftBounds(warn=0.05))
    retokenised: DriftBounds = field(default_factory=lambda: DriftBounds(warn=0.5))

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
    def weights_are_read(self) -> bool:
        """Whether anybody but an anchor may load the weights of any step."""
        return not self.offline or bool(self.evaluations)

    def measures_after(self, step: int) -> bool:
        """Whether held-out rows are measured after this step."""
        if self.held_out is None:
            return False
        return step % self.held_out.every_steps == 0 or step == self.steps_total

    @property
    def steps_total(self) -> int | None:
        """The last step as far as it is known; dynamic sampling may exhaust the data before it."""
        if self.waves_max is not None or self.tasks_total is None:
            return self.steps_max
        return -(-self.tasks_total // self.groups_per_step)


class TaskRows(Protocol):
    """Where the rows of tasks come from. May read files; called outside the event loop."""

    def train(self, ordinals: Sequence[int]) -> Sequence[Row]:
        """The rows of training tasks. Raises DataError."""
        ...

    def evaluation(self, name: str, split: str, positions: Sequence[int]) -> Sequence[Row]:
        """The rows of an evaluation's prompts. Raises DataError."""
        ...
