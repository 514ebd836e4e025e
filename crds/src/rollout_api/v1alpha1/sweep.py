"""RolloutSweep: runs of one template over settings, whose losers stop early."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import (
    ApiModel,
    IsTemplate,
    Message,
    Name,
    ObjectName,
    OneOf,
    Real,
    Rule,
    Timestamp,
    many,
)
from rollout_api.v1alpha1.common import Condition
from rollout_api.v1alpha1.objects.meta import SweepMeta
from rollout_api.v1alpha1.run import RolloutRunSpec

PARAMETERS_MAX, VALUES_MAX = 8, 32
RUNS_MAX, FORKS_MAX = 256, 64
RUNGS_MAX = 16
VALUE_MAX = 64

FieldName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Value = Annotated[str, StringConstraints(min_length=1, max_length=VALUE_MAX)]


class ParameterRange(ApiModel):
    """Numbers between two bounds, both included."""

    low: Real = Field(ge=-1_000_000_000, le=1_000_000_000)
    """Lowest value that is drawn."""
    high: Real = Field(ge=-1_000_000_000, le=1_000_000_000)
    """Highest value that is drawn."""
    scale: Literal["Linear", "Log"] = "Linear"
    """`Log` draws orders of magnitude alike, as learning rates want it; both bounds are then above 0."""


class SweepParameter(OneOf):
    """A field of the template that takes another value in each run."""

    members: ClassVar[tuple[str, ...]] = ("values", "range")

    field: FieldName
    """Its path below the template's `spec`, such as `train.optimizer.adamw.learningRate`: a number, a text or a boolean."""
    values: tuple[Value, ...] | None = many(VALUES_MAX, num_min=1, default=None)
    """The values it takes, as text: numbers and booleans are written in quotes."""
    range: ParameterRange | None = None
    """What it is drawn from; for numbers, and with `search.random`."""


class GridSearch(ApiModel):
    """Every combination of values, the last parameter fastest."""


class RandomSearch(ApiModel):
    """Combinations by chance; no two are the same."""

    samples: int = Field(ge=1, le=RUNS_MAX)
    """Number of combinations that are drawn."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Root of the chance: the same seed draws the same combinations."""


class Search(OneOf):
    """Which combinations are tried."""

    grid: GridSearch | None = None
    """Every combination of the values."""
    random: RandomSearch | None = None
    """So many, by chance."""


class Objective(ApiModel):
    """What runs are compared by; more is better."""

    metric: Literal["RewardMean", "BestEvaluation"] = "RewardMean"
    """`RewardMean`: the mean reward of the last step, `status.progress.rewardMean` of a run. `BestEvaluation`: the best value so far of the
    evaluation that `selects`, `status.progress.best.value`."""


class Halving(ApiModel):
    """Asynchronous successive halving (Li 2020): at each rung the best 1/factor of the runs that have come that far go on."""

    first_step: int = Field(ge=1, le=10_000_000)
    """Step of the first rung; each further one is `factor` times as far."""
    factor: int = Field(default=3, ge=2, le=10)
    """Of so many runs that have reached a rung one goes on."""
    min_runs: int | None = Field(default=None, ge=2, le=RUNS_MAX)
    """Runs that must have reached a rung before one is stopped there. Unset: `factor`."""


class EarlyStopping(ApiModel):
    """How losers are found before their end. They are suspended: saved, their devices given back."""

    halving: Halving
    """By rank among the runs that have come as far."""


class Forks(ApiModel):
    """What takes the place of a loser: a run that begins with a snapshot of the best one at the loser's rung (Jaderberg 2017).

    Its settings are the winner's; those that a begun run may change go to the value beside, or to 0.8 or 1.25 times theirs.
    """

    max: int = Field(ge=1, le=FORKS_MAX)
    """Forks in all; losers after that are stopped and nothing takes their place."""


class SweepTemplate(ApiModel):
    """The run that each run of the sweep is made from."""

    spec: Annotated[RolloutRunSpec, IsTemplate()]
    """As the `spec` of a RolloutRun, `kubectl explain rolloutrun.spec`; it trains. Checked by the webhook and the operator, not by the definition."""


def _immutable(field: str) -> Rule:
    same = (
        f"has(self.{field}) == has(oldSelf.{field})"
        f" && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    )
    return Rule(same, f"{field} is immutable: make another sweep", field)


class SweepSpec(ApiModel):
    """What is wanted of the sweep; immutable but for `parallelism` and `suspend`."""

    rules: ClassVar[tuple[Rule, ...]] = tuple(
        map(_immutable, ("template", "parameters", "search", "objective", "earlyStopping", "forks"))
    )

    template: SweepTemplate
    """What all runs have in common."""
    parameters: tuple[SweepParameter, ...] = many(PARAMETERS_MAX, num_min=1, key="field")
    """What is another in each run."""
    search: Search | None = None
    """Which combinations are tried. Unset: `grid`."""
    objective: Objective = Field(default_factory=Objective)
    """What runs are compared by."""
    parallelism: int = Field(default=1, ge=1, le=RUNS_MAX)
    """Runs at work at a time. May be changed: fewer stops none that is at work."""
    suspend: bool = False
    """Make no runs, and suspend those at work: each saves itself and gives its devices back. May be changed: false lets those go on."""
    early_stopping: EarlyStopping | None = None
    """How losers are stopped before their end. Unset: every run goes to its end."""
    forks: Forks | None = None
    """What takes the place of losers; with `earlyStopping`, and runs that keep their objects in a bucket. Unset: nothing."""


class Rung(ApiModel):
    """What a run had when it was first seen at or past a rung of `earlyStopping`."""

    step: int = Field(ge=1)
    """Step of the rung."""
    value: Real
    """Value of the objective."""


class ForkedFrom(ApiModel):
    """The run that a fork begins from."""

    name: ObjectName
    """Name of its RolloutRun."""
    step: int = Field(default=0, ge=0)
    """Step that it had come to when that was decided; the fork is compared at rungs past it."""


class SweepRun(ApiModel):
    """One run of the sweep, by what it sets. Neither `uid` nor `outcome`: it waits. Only `uid`: it is at work."""

    name: ObjectName
    """Name of its RolloutRun in the same namespace."""
    values: tuple[Value, ...] = many(PARAMETERS_MAX)
    """Its values, in the order of `spec.parameters`."""
    uid: Name | None = None
    """UID of its RolloutRun. Unset: not made yet."""
    outcome: Literal["Succeeded", "Failed", "Stopped", "Deleted"] | None = None
    """How it ended. `Stopped`: it lost, and is suspended. `Deleted`: somebody deleted it; it is not made again."""
    suspended: bool = False
    """Of a run at work: it is suspended, with the sweep or by somebody, and goes on when that is lifted."""
    message: Message = ""
    """Why it failed or was stopped."""
    step: int | None = Field(default=None, ge=0)
    """Step that it has come to, as last seen."""
    value: Real | None = None
    """Its value of the objective, as last seen. Unset: it has reported none."""
    rungs: tuple[Rung, ...] = many(RUNGS_MAX)
    """What it had at the rungs of `earlyStopping`."""
    forked_from: ForkedFrom | None = None
    """Of a fork: the winner that it begins from, by a RolloutSnapshot of the fork's own name. Unset: it begins with the model."""


class SweepCounts(ApiModel):
    """Runs by what has become of them."""

    waiting: int = Field(default=0, ge=0)
    """Runs that are not made yet."""
    running: int = Field(default=0, ge=0)
    """Made, not over and not suspended."""
    suspended: int = Field(default=0, ge=0)
    """Made, not over and suspended: with the sweep, or by somebody."""
    succeeded: int = Field(default=0, ge=0)
    """Went to their end."""
    stopped: int = Field(default=0, ge=0)
    """Runs that lost, and are suspended."""
    failed: int = Field(default=0, ge=0)
    """Runs that ended badly."""
    deleted: int = Field(default=0, ge=0)
    """Runs that somebody has deleted."""


class BestRun(ApiModel):
    """The run with the highest value: of those that went to their end, else of those that came furthest."""

    name: ObjectName
    """Name of its RolloutRun."""
    value: Real
    """Its value of the objective."""
    step: int = Field(ge=0)
    """Step that it has come to."""
    values: tuple[Value, ...] = many(PARAMETERS_MAX)
    """Its values, in the order of `spec.parameters`."""


class SweepStatus(ApiModel):
    """What is known of the sweep."""

    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this status speaks about."""
    conditions: tuple[Condition, ...] = many(16, key="type")
    """`Ready` while runs are made and compared; `Complete` or `Failed`, and `Finished`, when all are over."""
    total: int = Field(default=0, ge=0)
    """Runs of the sweep."""
    counts: SweepCounts | None = None
    """The same by what has become of them."""
    best: BestRun | None = None
    """The best run so far. Unset: none has reported a value."""
    completion_time: Timestamp | None = None
    """When all runs were over."""
    runs: tuple[SweepRun, ...] = many(RUNS_MAX + FORKS_MAX, key="name")
    """Every run, forks behind the others. What stands here is acted on: a run that has a UID is not made again."""


class RolloutSweep(ApiModel):
    """Runs of one template over a grid of settings, or settings by chance, compared while they go on; losers may stop early."""

    api_version: Literal["rollout.dev/v1alpha1"] = "rollout.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["RolloutSweep"] = "RolloutSweep"
    """Kind of the object."""
    metadata: SweepMeta
    """Name, namespace and labels of the object."""
    spec: SweepSpec
    """What is wanted of the sweep."""
    status: SweepStatus | None = None
    """What is known of it; written by the operator."""
