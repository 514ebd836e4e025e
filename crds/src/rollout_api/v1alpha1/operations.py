"""How a run is kept safe, watched and bounded: snapshots, tracking, limits. All live settings."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Name, OneOf, Real, Rule, Uri, filled, many
from rollout_api.v1alpha1.environment import PluginSource

Layer = Literal["TrainState", "Buffer", "Process", "EpisodicMemory"]
ScheduleName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=20, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
]
CronText = Annotated[
    str, StringConstraints(min_length=9, max_length=120, pattern=r"^\S+( +\S+){4}$")
]


class SnapshotSchedule(OneOf):
    """When a RolloutSnapshot is made of the run, as an object with its bytes: by the clock, or every so many steps.

    Each is made while the run is at work, of its newest anchor, and one at a time. What falls due while another is being
    made, while the run is suspended or while no operator runs is made up for once.
    """

    members: ClassVar[tuple[str, ...]] = ("cron", "every_steps")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.cron) || !(has(self.timeZone) || has(self.startingDeadlineSeconds))",
            "timeZone and startingDeadlineSeconds go with cron",
            "cron",
        ),
    )

    name: ScheduleName
    """Its name in labels and in the names of its snapshots; `suspend`, `end` and `best` are taken."""
    cron: CronText | None = None
    """Five fields, as a CronJob's: minute, hour, day of month, month, day of week. `0 2 * * *` is every night at two."""
    time_zone: Name | None = None
    """Time zone that `cron` is read in, such as `Europe/Berlin`. Unset: UTC."""
    every_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Steps from one to the next: a multiple of `snapshots.everySteps`, which says how often there is an anchor to save."""
    starting_deadline_seconds: int | None = Field(default=None, ge=10, le=31_536_000)
    """How late one may still be begun. Unset: however late."""
    keep_last: int = Field(default=3, ge=1, le=100)
    """How many that are complete are kept; older ones are deleted, each object with its bytes."""
    deadline_seconds: int = Field(default=3600, ge=1, le=604_800)
    """`deadlineSeconds` of each: time from its creation until it is durable, past which it has failed."""


class Snapshots(ApiModel):
    """When the whole run is saved, and what is kept."""

    every_steps: int = filled(25, ge=1, le=10_000_000)
    """Steps from one anchor to the next."""
    include: tuple[Layer, ...] = many(4, default=("TrainState",), extra={"x-rollout-preset": True})
    """What is saved beside the train state, which always is. `Process`, on one machine: the learner is started so that `rollout snapshot create
    --include process` can image it (CRIU 4.2, root, on CPUs; not beside tools, sandboxes or plugins). The others are refused."""
    keep_last: int = filled(3, ge=1, le=10_000)
    """Newest snapshots kept; `Best` and `Latest` are kept besides."""
    keep_labeled: bool = filled(default=True)
    """Keep labelled snapshots. This version has no labels and refuses `false`."""
    max_replay_steps: int = filled(50, ge=1, le=100_000)
    """Most steps that a restart may have to replay; `everySteps` must not be above it."""
    on_preemption: Literal["Drain", "SnapshotIfTime"] = filled("Drain")
    """When the learner is preempted (SIGTERM): end at the next step boundary and rely on anchor and replay, or
    save an anchor there first when the grace period leaves time."""
    schedules: tuple[SnapshotSchedule, ...] = many(8, key="name")
    """When RolloutSnapshots are made, in a cluster and of a run whose objects lie in a bucket. On one machine: refused."""
    on_suspend: bool = filled(default=False)
    """Make a RolloutSnapshot when the run is suspended, or its queue takes the quota back: once the workers are gone and before the
    coordinator goes, which stays at most ten minutes for it. The newest three are kept. Places and refusals as of `schedules`."""
    at_end: bool = filled(default=False)
    """The same of a run that ends well, before it says so; the newest is kept."""
    best: bool = filled(default=False)
    """The same of the best version so far, by the evaluation that `selects`, whenever there is a better one; the newest is kept."""


class TensorBoard(ApiModel):
    """Event files in the run's folder."""


class Wandb(ApiModel):
    """Weights and Biases; the key comes from a Secret in `env` (WANDB_API_KEY)."""

    project: Name
    """Project that the runs are shown under."""
    entity: Name | None = None
    """Team or user. Unset: the key's own."""
    mode: Literal["Online", "Offline"] = filled("Online")
    """Send at once, or write files to send later."""


class Mlflow(ApiModel):
    """MLflow: a server, or a file of one's own."""

    uri: Uri | None = None
    """Tracking URI, such as `http://mlflow:5000`; in a cluster a server's. Unset: a SQLite file in the run's folder."""
    experiment: Name = filled("rollout")
    """Experiment that the runs are shown under."""


class JsonlFile(ApiModel):
    """One JSON object a step in `metrics.jsonl`; written in any case."""


class RunEvents(ApiModel):
    """A queue or topic of a cloud that is told when a run starts, takes a snapshot, has a new best version, is stuck, misses a gate and ends."""

    uri: Uri
    """`sqs://REGION/ACCOUNT/QUEUE`, `sns://REGION/ACCOUNT/TOPIC` or `pubsub://PROJECT/TOPIC`. A name that ends in `.fifo` keeps the order of a
    run's events, as Pub/Sub does by ordering keys. Credentials are the coordinator's own."""


class Tracking(OneOf):
    """One place that metrics or events go to."""

    tensorboard: TensorBoard | None = None
    """Event files that TensorBoard reads."""
    wandb: Wandb | None = None
    """A project of Weights and Biases."""
    mlflow: Mlflow | None = None
    """An experiment of an MLflow server."""
    jsonl: JsonlFile | None = None
    """A file of JSON lines."""
    plugin: PluginSource | None = None
    """A plugin of kind `tracker`: a program of yours that is told of each step and of the end. It stops no run and holds none up."""
    events: RunEvents | None = None
    """A queue or topic that gets a run's events as CloudEvents, at least once and with ids. It stops no run and holds none up. Unproven on a cloud."""


class Limits(ApiModel):
    """Bounds after which something is done rather than waited for."""

    gang_seconds: int = filled(900, ge=1, le=31_536_000)
    """A learner group that is not complete by then gives its devices back and tries again. Not of a run with
    quota from a queue: there it is Kueue's to take it back (`waitForPodsReady`)."""
    pre_running_seconds: int = filled(1800, ge=1, le=31_536_000)
    """A run that has not started its first step by then has failed; waiting for quota not counted."""
    active_seconds: int | None = Field(default=None, ge=1, le=315_360_000)
    """A run that goes on longer has failed; suspended time not counted. Unset: no bound."""
    no_progress_seconds: int = filled(900, ge=1, le=31_536_000)
    """Longest time without a committed step or finished sample; then the stuck worker restarts."""
    node_lost_seconds: int = filled(120, ge=1, le=31_536_000)
    """How long a node may not answer before the run says so."""
    sample_seconds: int = filled(1800, ge=1, le=31_536_000)
    """How long the learner waits for one sample in flight; past it the sample is expired."""
    sample_attempts: int = filled(5, ge=1, le=100)
    """Attempts at one sample whose infrastructure fails; then it is excluded."""
    retries: int = filled(10, ge=0, le=10_000)
    """Restarts of a failed worker group before the run has failed; preemption is not counted."""
    mismatch_kl_warn: Real = filled(0.05, gt=0, le=1000)
    """Mean KL per token, in nats, between what actors sampled with and what the learner computes for the
    same tokens, above which the run says so (three steps in a row; bfloat16 engines stay below 0.01)."""
    mismatch_kl_stop: Real | None = Field(default=None, gt=0, le=1000)
    """The same, above which the run stops with its state saved. Unset: it goes on."""
    retokenised_warn: Real = filled(0.5, gt=0, le=1)
    """Share of samples whose text, encoded again, would be other tokens than were sampled, above which the
    run says so (three steps in a row). rollout trains on the sampled tokens; whoever reads texts (rewards,
    exports) sees something else. Half is far above what trained models show at temperature 1."""
    retokenised_stop: Real | None = Field(default=None, gt=0, le=1)
    """The same, above which the run stops with its state saved. Unset: it goes on."""
    reward_divergence: Literal["Warn", "StopRun"] = filled("Warn")
    """What follows where the selecting evaluation falls from the best of its last ten results by more than chance explains (fewer
    than one run in a hundred, all looks together), while the reward of training is higher than it was there: say so in a condition, or
    stop with the state saved."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=315_360_000)
    """When pods and volumes of a finished run go; the run object stays. Unset: never."""
    ttl_action: Literal["RemoveChildren", "DeleteRun"] | None = None
    """`DeleteRun` deletes the run object too, once that time is over and its children are gone. Refused for a
    run that Argo CD, Flux or Helm keeps: it would be made, and train, again. Unset: `RemoveChildren`."""
