"""The kinds of the group: names, scope, columns, subresources."""

from dataclasses import dataclass
from typing import Literal

from rollout_api.base import ApiModel
from rollout_api.v1alpha1.inference.endpoint import RolloutEndpoint
from rollout_api.v1alpha1.run import RolloutRun
from rollout_api.v1alpha1.runtime import ClusterRolloutRuntime, RolloutRuntime
from rollout_api.v1alpha1.snapshot import RolloutSnapshot
from rollout_api.v1alpha1.sweep import RolloutSweep

READY = '.status.conditions[?(@.type=="Ready")].status'
REASON = '.status.conditions[?(@.type=="Ready")].reason'


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column; ``wide`` ones show with ``-o wide`` only."""

    name: str
    path: str
    type: Literal["string", "integer", "date"] = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Paths of the scale subresource."""

    replicas: str
    status_replicas: str
    selector: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind as the API server knows it."""

    model: type[ApiModel]
    plural: str
    short_name: str
    scope: Literal["Namespaced", "Cluster"] = "Namespaced"
    columns: tuple[Column, ...]
    scale: Scale | None = None

    @property
    def name(self) -> str:
        """The kind's name, such as ``RolloutRun``."""
        return self.model.__name__


_STATE = (Column("Ready", READY), Column("Reason", REASON))
_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_RUNTIME_COLUMNS = (*_STATE, Column("Queue", ".spec.queueName", wide=True), _AGE)

KINDS: tuple[Kind, ...] = (
    Kind(
        model=RolloutRun,
        plural="rolloutruns",
        short_name="rrun",
        columns=(
            *_STATE,
            Column("Step", ".status.progress.step", "integer"),
            Column("Reward", ".status.progress.rewardMean"),
            Column("Actors", ".status.actors.ready", "integer"),
            Column("Learners", ".status.learner.ready", "integer"),
            Column("Actors-Wanted", ".status.actors.desired", "integer", wide=True),
            Column("Learners-Wanted", ".status.learner.desired", "integer", wide=True),
            Column("Tok/s", ".status.progress.tokensPerSecond", wide=True),
            Column("Version", ".status.progress.policyVersion", "integer", wide=True),
            Column("Snapshot", ".status.lastSnapshot.name", wide=True),
            Column("Queue", ".spec.queueName", wide=True),
            _AGE,
        ),
        scale=Scale(".spec.actors.replicas", ".status.actors.replicas", ".status.selector"),
    ),
    Kind(
        model=RolloutSnapshot,
        plural="rolloutsnapshots",
        short_name="rsnap",
        columns=(
            *_STATE,
            Column("Run", ".spec.source.run.name"),
            Column("Step", ".status.step", "integer"),
            Column("Grade", ".status.grade"),
            Column("Bytes", ".status.sizeBytes", "integer", wide=True),
            Column("Digest", ".status.digest", wide=True),
            _AGE,
        ),
    ),
    Kind(
        model=RolloutEndpoint,
        plural="rolloutendpoints",
        short_name="rend",
        columns=(
            *_STATE,
            Column("Servers", ".status.readyReplicas", "integer"),
            Column("Url", ".status.url"),
            Column("Revision", ".status.currentRevision"),
            Column("Wanted", ".spec.replicas", "integer", wide=True),
            _AGE,
        ),
        scale=Scale(".spec.replicas", ".status.replicas", ".status.selector"),
    ),
    Kind(
        model=RolloutSweep,
        plural="rolloutsweeps",
        short_name="rsweep",
        columns=(
            *_STATE,
            Column("Runs", ".status.total", "integer"),
            Column("Running", ".status.counts.running", "integer"),
            Column("Succeeded", ".status.counts.succeeded", "integer"),
            Column("Stopped", ".status.counts.stopped", "integer"),
            Column("Best", ".status.best.name"),
            Column("Value", ".status.best.value"),
            Column("Waiting", ".status.counts.waiting", "integer", wide=True),
            Column("Suspended", ".status.counts.suspended", "integer", wide=True),
            Column("Failed", ".status.counts.failed", "integer", wide=True),
            Column("Metric", ".spec.objective.metric", wide=True),
            _AGE,
        ),
    ),
    Kind(
        model=RolloutRuntime,
        plural="rolloutruntimes",
        short_name="rrt",
        columns=_RUNTIME_COLUMNS,
    ),
    Kind(
        model=ClusterRolloutRuntime,
        plural="clusterrolloutruntimes",
        short_name="crrt",
        scope="Cluster",
        columns=_RUNTIME_COLUMNS,
    ),
)


def model_of(kind: str) -> type[ApiModel]:
    """The model of a kind. Raises ValueError when there is none."""
    for known in KINDS:
        if known.name == kind:
            return known.model
    names = ", ".join(known.name for known in KINDS)
    raise ValueError(f"kind must be one of {names}, got {kind!r}")
