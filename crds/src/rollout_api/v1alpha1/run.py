"""RolloutRun: one unit of work that ends. Exactly one of train, infer, evaluate, serve."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Name, OneOf, Rule, api_name, filled, many
from rollout_api.v1alpha1.common import RunEnvVars, RuntimeRef
from rollout_api.v1alpha1.evaluation import Evaluate, Evaluation
from rollout_api.v1alpha1.inference.infer import Infer
from rollout_api.v1alpha1.inference.serve import Serve
from rollout_api.v1alpha1.model import Model
from rollout_api.v1alpha1.objects.changes import settled_while_alive
from rollout_api.v1alpha1.objects.meta import RunMeta
from rollout_api.v1alpha1.operations import Limits, Snapshots, Tracking
from rollout_api.v1alpha1.pods.roles import Actors, Learner
from rollout_api.v1alpha1.run_status import RunStatus
from rollout_api.v1alpha1.storage import Code, RestoreFrom, Storage
from rollout_api.v1alpha1.training.algorithms import TRAITS
from rollout_api.v1alpha1.training.train import Train

LIVE_SPEC = frozenset({"suspend", "limits", "snapshots", "evaluations", "tracking"})
"""Settings that go to a living run attempt: its coordinator is told."""
IMMUTABLE_SPEC = frozenset({"seed", "numerics", "storage", "managedBy", "train", "actors"})
"""Settings with rules of their own."""
LIVE_TRAIN = frozenset({"maxSteps", "algorithm", "oldLogprobs"})
"""Of `train`: live, or with rules of their own."""
LIVE_ACTORS = frozenset({"replicas", "autoscale"})
"""Of `actors`: live."""
_PRESET = r"[a-z0-9]([-._a-z0-9]*[a-z0-9])?@v[0-9]+"
PresetName = Annotated[
    str, StringConstraints(max_length=128, pattern=rf"^{_PRESET}(\+{_PRESET})*$")
]


class Numerics(ApiModel):
    """What is claimed about equality of runs; docs/concepts/equality.md has the table."""

    mode: Literal["Exact", "Fast"] = "Exact"
    """`Exact`: every rerun, kill and resume meets the same hash where the hardware allows it.
    `Fast`: no such claim, correctness by invariants and statistics."""
    hash_every_steps: int = filled(1, ge=1, le=1_000_000)
    """Steps between hashes of the whole state."""


def _immutable(field: str, message: str) -> Rule:
    return Rule(
        f"has(self.{field}) == has(oldSelf.{field})"
        f" && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        message,
        field,
    )


_SAMPLES = " || ".join(
    f"has(self.train.algorithm.{api_name(name)})" for name, one in TRAITS.items() if one.is_online
)
"""CEL: the algorithm samples from the policy."""


class RolloutRunSpec(OneOf):
    """What is wanted of a run."""

    members: ClassVar[tuple[str, ...]] = ("train", "infer", "evaluate", "serve")
    rules: ClassVar[tuple[Rule, ...]] = (
        _immutable("seed", "seed is immutable: it names every sample's noise"),
        _immutable("numerics", "numerics is immutable"),
        _immutable("storage", "storage is immutable"),
        _immutable("managedBy", "managedBy is immutable"),
        Rule(
            "has(self.train) == has(oldSelf.train) && has(self.infer) == has(oldSelf.infer)"
            " && has(self.serve) == has(oldSelf.serve)",
            "the kind of work is immutable: make another run",
        ),
        Rule(
            "!has(self.evaluations)"
            " || self.evaluations.filter(e, has(e.selects) && e.selects).size() <= 1",
            "at most one evaluation may select the Best snapshot",
            "evaluations",
        ),
        Rule(
            "!has(self.actors) || ((!has(self.actors.replicas) || self.actors.replicas <= 1)"
            " && !has(self.actors.autoscale)) || !has(self.train)"
            f" || {_SAMPLES} || (has(self.evaluations) && self.evaluations.size() > 0)",
            "this run has no actors to scale: its algorithm samples nothing and there are no evaluations",
            "actors",
        ),
    )

    model: Model
    """The model to work on."""
    train: Train | None = None
    """Train: change the weights of the model."""
    infer: Infer | None = None
    """Complete rows with it."""
    evaluate: Evaluate | None = None
    """Measure it by `evaluations`, each once."""
    serve: Serve | None = None
    """Let clients train adapters over it with loops of their own, call by call."""
    preset: PresetName | None = None
    """Settings to start from, `name@version`, or several joined with `+` such as
    `qwen2.5-0.5b@v1+dapo@v1`; what the manifest says wins. Unset: `defaults@v1`."""
    seed: int = Field(default=0, ge=-(2**63), le=2**63 - 1)
    """Root of all randomness; immutable. A restored run inherits its source's."""
    numerics: Numerics = filled(default_factory=Numerics)
    """What is claimed about equality; immutable."""
    restore_from: RestoreFrom | None = None
    """Begin with a snapshot of another run of the namespace; in a run that has begun and is suspended, go back to one of its own
    when it is resumed, once. Unset: start from `model`."""
    suspend: bool = False
    """Save, stop and give the devices back; false goes on from there."""
    runtime_ref: RuntimeRef | None = None
    """The platform's runtime. Unset: `default`, of the namespace or the cluster."""
    queue_name: Name | None = None
    """Kueue queue; the label kueue.x-k8s.io/queue-name works too, and names the same where both are there. Unset: the runtime's, else none."""
    managed_by: Literal["rollout.dev/operator", "kueue.x-k8s.io/multikueue"] | None = None
    """Controller that handles this run. `kueue.x-k8s.io/multikueue`: the operator writes nothing of it. Unset:
    `rollout.dev/operator`. Immutable."""
    code: Code | None = None
    """The user's own code."""
    storage: Storage | None = None
    """Where objects and records lie; immutable. Unset: the runtime's, or the run's folder."""
    env: RunEnvVars = many(128, key="name")
    """Environment variables of actors, learner, and what runs your data code: plain ones, and of Secrets such as HF_TOKEN. The
    coordinator gets a few of Secrets by name: `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, `WANDB_API_KEY`, `MLFLOW_TRACKING_USERNAME`,
    `_PASSWORD` and `_TOKEN`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`."""
    actors: Actors = Field(default_factory=Actors)
    """The workers that sample."""
    learner: Learner = filled(default_factory=Learner)
    """The workers that train."""
    evaluations: tuple[Evaluation, ...] = many(32)
    """Measurements beside training, or the whole work of an `evaluate` run."""
    snapshots: Snapshots = filled(default_factory=Snapshots)
    """When the run is saved."""
    tracking: tuple[Tracking, ...] = many(8)
    """Where metrics go, beside the run's own file."""
    limits: Limits = filled(default_factory=Limits)
    """Bounds on waiting, on retries and on time."""

    @property
    def needs_actors(self) -> bool:
        """Whether anything is sampled, under any step's weights: RL, inference, or any evaluation."""
        if self.train is None:
            return self.serve is None
        return self.train.algorithm.is_online or bool(self.evaluations)

    @property
    def trains_scorer(self) -> bool:
        """Whether what comes of it is a reward model."""
        return self.train is not None and self.train.algorithm.traits.scores

    @property
    def brings_data_code(self) -> bool:
        """Whether rows come from the author's own code: in a cluster a container of its own runs it."""
        environment = None if self.train is None else self.train.environment
        own = environment is not None and (
            environment.python is not None or any("." in name for name in environment.tools)
        )
        data = [None if self.train is None else self.train.data]
        data += [one.suite.data for one in self.evaluations]
        return (
            own
            or any(one is not None and one.plugin is not None for one in data)
            or any(one.suite.python or one.suite.plugin for one in self.evaluations)
        )


class RolloutRun(ApiModel):
    """Training, batch inference or evaluation, from start to a result; or a service that others train with."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *settled_while_alive("", RolloutRunSpec, LIVE_SPEC | IMMUTABLE_SPEC),
        *settled_while_alive("train", Train, LIVE_TRAIN),
        *settled_while_alive("actors", Actors, LIVE_ACTORS),
        Rule(
            "!has(self.spec.model.fromRun) || self.spec.model.fromRun.name != self.metadata.name",
            "the run waits for itself: start from a model uri",
            "spec.model.fromRun.name",
        ),
    )

    api_version: Literal["rollout.dev/v1alpha1"] = "rollout.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["RolloutRun"] = "RolloutRun"
    """Kind of the object."""
    metadata: RunMeta
    """Name, namespace and labels of the object."""
    spec: RolloutRunSpec
    """What is wanted of the run."""
    status: RunStatus | None = None
    """What is known of it; written by the operator."""
