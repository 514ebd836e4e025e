"""What a RolloutRun reports. No phase: conditions say what is so."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import (
    ApiModel,
    Digest,
    Label,
    Message,
    Name,
    ObjectName,
    Real,
    Text,
    Timestamp,
    Uri,
    many,
)
from rollout_api.v1alpha1.common import Condition
from rollout_api.v1alpha1.pods.pods import LabelKey, Quantity

Grade = Literal["Exact", "ReplayExact", "Logical"]


class RoleStatus(ApiModel):
    """Workers of one role."""

    ready: int = Field(default=0, ge=0)
    """Workers that do their job."""
    desired: int = Field(default=0, ge=0)
    """Workers that shall run now."""
    replicas: int = Field(default=0, ge=0)
    """Pods of the role that exist."""
    restarts: int = Field(default=0, ge=0)
    """Restarts in this run attempt."""
    incarnation: int = Field(default=0, ge=0)
    """Group start that these numbers speak about (learner only)."""


class Dispositions(ApiModel):
    """How admitted samples ended; the sum never misses one."""

    consumed: int = Field(default=0, ge=0)
    """Samples that were trained on."""
    filtered: int = Field(default=0, ge=0)
    """Dropped for want of signal or for length."""
    expired: int = Field(default=0, ge=0)
    """Too old to be trained on."""
    excluded: int = Field(default=0, ge=0)
    """Lost to infrastructure after all attempts."""
    surplus: int = Field(default=0, ge=0)
    """Samples that were not needed any more."""


class Outcome(ApiModel):
    """How the work ended, as the coordinator's records say; exit codes of processes are hints."""

    kind: Literal["Succeeded", "Failed", "Stopped"]
    """`Stopped`: the state is saved and a later attempt goes on from it."""
    reason: Name
    """Why, in one word."""
    message: Message = ""
    """The same for people."""


class ReportedCondition(ApiModel):
    """A condition that only the coordinator can judge; the operator copies it to `conditions`."""

    type: Literal[
        "WeightsVerified",
        "Learning",
        "LogprobsAgree",
        "TokensRoundTrip",
        "RewardHolds",
        "Tracking",
        "Snapshotted",
    ]
    """Which aspect of the work is meant."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds: `True`, `False`, or `Unknown`."""
    reason: Name
    """Why, in one word of the closed list."""
    message: Message = ""
    """The same for people."""


class LearnerGroup(ApiModel):
    """The learner's ranks as the coordinator sees them."""

    incarnation: int = Field(ge=0)
    """Group start that this speaks about."""
    stage: Literal["Joining", "Running", "Failed", "Done"]
    """`Failed` asks for a new group start."""
    message: Message = ""
    """Which rank failed, and how."""


class SnapshotSummary(ApiModel):
    """A snapshot of this run."""

    name: Name
    """Name of the snapshot, by its step."""
    step: int = Field(ge=0)
    """Optimizer step whose state it holds."""
    model_uri: Uri | None = None
    """Location of its model, packed as one object for runs that start from it (`fromRun`); set when the run
    has succeeded."""
    weights_uri: Uri | None = None
    """Location of its weights, for servers that follow the run. Unset: no bucket holds them, or they are an adapter's or a reward model's."""
    weights_digest: Digest | None = None
    """Digest of these weights, which servers hold them against."""
    time: Timestamp | None = None
    """When it became durable."""
    metric: Name | None = None
    """What it was chosen by (`Best` only)."""
    value: Real | None = None
    """Value of that metric."""


class ScheduleStatus(ApiModel):
    """How far one entry of `spec.snapshots.schedules` is."""

    name: Name
    """Name of the schedule; `suspend` and `end` are those of `onSuspend` and `atEnd`."""
    last_time: Timestamp | None = None
    """Its newest time that was acted on, or since when it is followed; later times are still to come."""
    last_step: int | None = Field(default=None, ge=0)
    """Its newest step that was acted on, a multiple of `everySteps`."""
    last_snapshot: ObjectName | None = None
    """The RolloutSnapshot that was made last."""


class Stuck(ApiModel):
    """No step and no sample for `limits.noProgressSeconds`."""

    worker: Name | None = None
    """Worker to be started anew, such as `actor-0` or `learner`. Unset: no one of them holds the run up."""
    message: Message
    """Who waits for what."""
    time: Timestamp
    """When that was found; a worker that began later is not meant."""


class RowCounts(ApiModel):
    """How far a run without a learner is: rows that it answers, or prompts that it measures by."""

    total: int = Field(ge=0)
    """Rows of the data, those included that are refused."""
    done: int = Field(default=0, ge=0)
    """Rows with an answer."""
    failed: int = Field(default=0, ge=0)
    """Rows without one: refused before they were asked, or given up by the engine."""
    tokens: int = Field(default=0, ge=0)
    """Tokens that were generated for them."""
    seconds_left: int | None = Field(default=None, ge=0)
    """Estimate at the pace so far. Unset: none can be made yet, or nothing is left."""


class ServiceCounts(ApiModel):
    """What a service has, once it answers."""

    url: Uri
    """Address inside the cluster, for `TINKER_BASE_URL`."""
    models: int = Field(default=0, ge=0)
    """Models that clients have made."""
    calls: int = Field(default=0, ge=0)
    """Calls on models that are answered, refusals included; samples are not counted."""


class DayOfUse(ApiModel):
    """How long pods of one role, of one shape, were there on one day."""

    day: Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", max_length=10)]
    """The day, of UTC."""
    role: Literal["Coordinator", "Learner", "Actor"]
    """Role of the workers."""
    milliseconds: int = Field(ge=0, le=2**53)
    """Time of all workers of the role together."""
    pods: int = Field(default=1, ge=1)
    """Pods of one worker: the nodes of a learner."""
    requests: dict[LabelKey, Quantity] = Field(default_factory=dict, max_length=32)
    """What one pod asks for."""
    instance_type: Name | None = None
    """Type of node that it is placed on. Unset: its manifest does not say."""
    capacity: Literal["OnDemand", "Spot"] | None = None
    """Whether that may be taken away. Unset: nobody says."""


class Progress(ApiModel):
    """How far the work is; written by the coordinator alone."""

    attempt: int = Field(default=0, ge=0)
    """Run attempt that this speaks about: the word of an earlier one does not end this one."""
    step: int = Field(default=0, ge=0)
    """Optimizer step that was committed last."""
    max_steps: int | None = Field(default=None, ge=0)
    """Step at which the run ends, as far as known."""
    policy_version: int = Field(default=0, ge=0)
    """Step of the newest weights that actors may sample from."""
    lineage: int = Field(default=0, ge=0)
    """Unbroken chain of steps that the run is on."""
    reward_mean: Real | None = None
    """Mean reward of the last step."""
    reward_price: Real | None = None
    """What the rewards of the last step cost, by the prices of its judges. Unset: nothing that is paid for was asked."""
    tokens_per_second: Real | None = None
    """Trained tokens a second, over the last steps."""
    bottleneck: Literal["Actors", "Learner", "Balanced"] | None = None
    """Who is waited for."""
    mismatch_kl: Real | None = None
    """KL between actor and learner on the last step's tokens, in nats."""
    staleness: Real | None = None
    """Mean age of the last step's trajectories, in steps."""
    dispositions: Dispositions | None = None
    """How samples ended so far."""
    rows: RowCounts | None = None
    """Rows of a run that only answers or measures. Unset: the run trains, or has not looked at them yet."""
    serve: ServiceCounts | None = None
    """What a service has. Unset: the run is none, or does not answer yet."""
    usage: tuple[DayOfUse, ...] = many(1000)
    """What the run has used, for what it costs; the newest days where there are more. Empty: nothing has been noted."""
    conditions: tuple[ReportedCondition, ...] = many(8, key="type")
    """What the coordinator judges."""
    actors_wanted: int | None = Field(default=None, ge=0)
    """Actors that `actors.autoscale` asks for now."""
    group: LearnerGroup | None = None
    """The learner's ranks. Unset: none has come."""
    stuck: Stuck | None = None
    """Nothing moves. Unset: something does."""
    last_snapshot: SnapshotSummary | None = None
    """The newest snapshot that is durable."""
    best: SnapshotSummary | None = None
    """Best version so far, by the evaluation that selects."""
    outcome: Outcome | None = None
    """How the work ended. Unset: it goes on."""
    update_time: Timestamp | None = None
    """When this was written."""


class FilledSetting(ApiModel):
    """A setting that the manifest left to a preset."""

    name: Name
    """Its path below `spec`, such as `train.microBatchTokens`."""
    value: Name
    """What it is, as text; cut where it is long."""


class FilledByPresets(ApiModel):
    """What presets made of the spec. Fields that stay at their defaults are not listed: the API's reference has those."""

    presets: tuple[Name, ...] = many(16)
    """The presets that were laid below the manifest, the first winning over those after it."""
    settings: tuple[FilledSetting, ...] = many(128, key="name")
    """What they filled in."""


class RunStatus(ApiModel):
    """What is known of the run."""

    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this status speaks about."""
    conditions: tuple[Condition, ...] = many(32, key="type")
    """Aspects of the run's state; docs/reference/conditions.md explains each."""
    attempt: int = Field(default=0, ge=0)
    """Lives of the run's children so far."""
    configuration: Label | None = None
    """Name of the immutable configuration that this run attempt runs under."""
    start_time: Timestamp | None = None
    """When this run attempt's pods were let go; unset while suspended."""
    settings_generation: int = Field(default=0, ge=0)
    """The generation whose live settings the coordinator has."""
    active_seconds: int = Field(default=0, ge=0)
    """Running time of earlier run attempts; suspended time is not in it."""
    completion_time: Timestamp | None = None
    """When the run finished."""
    resolved: FilledByPresets | None = None
    """What presets filled in. Unset: the run names none beside `defaults@v1`."""
    progress: Progress | None = None
    """How far the work is."""
    coordinator: RoleStatus | None = None
    """Pods and restarts of the coordinator."""
    learner: RoleStatus | None = None
    """Pods and restarts of the learner."""
    actors: RoleStatus | None = None
    """Pods and restarts of the actors."""
    selector: Text | None = None
    """Label selector of the actor pods, for the scale subresource."""
    last_snapshot: SnapshotSummary | None = None
    """The newest snapshot that is durable."""
    best: SnapshotSummary | None = None
    """Best snapshot, by the evaluation that selects."""
    schedules: tuple[ScheduleStatus, ...] = many(16, key="name")
    """How far each of `spec.snapshots.schedules` is."""
