"""RolloutEndpoint: online inference behind an OpenAI-compatible address."""

from typing import ClassVar, Literal

from pydantic import Field

from rollout_api.base import (
    ApiModel,
    Digest,
    Label,
    Name,
    ObjectName,
    OneOf,
    Real,
    Rule,
    Text,
    Timestamp,
    Uri,
    many,
)
from rollout_api.v1alpha1.common import (
    Condition,
    FromRun,
    NameRef,
    Parameters,
    RuntimeRef,
    SecretKeyRef,
)
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.v1alpha1.inference.scaling import EndpointRoute, Scaling
from rollout_api.v1alpha1.objects.meta import RunMeta
from rollout_api.v1alpha1.pods.pods import Accelerator, PodSettings
from rollout_api.v1alpha1.storage import SnapshotRef


class EndpointModel(OneOf):
    """The model that is served."""

    members: ClassVar[tuple[str, ...]] = ("uri", "from_run", "snapshot_ref")

    uri: Uri | None = None
    """`hf://owner/name`, or the address of a folder of a model."""
    from_run: FromRun | None = None
    """The model that a run in the same namespace has handed on when it ended well, `Latest` or `Best`, from its bucket. Followed:
    a run of that name that ends with another model is a promotion; one that goes leaves what serves as it is. `Live`: the weights
    that it has saved last while it is at work, taken by the servers as they are (engine `embedded` only)."""
    snapshot_ref: SnapshotRef | None = None
    """The weights in a RolloutSnapshot of the same namespace, in a bucket; `baseURI` has the rest of the model."""
    base_uri: Uri | None = None
    """The model that the run of `snapshotRef` began with, as `uri` is written: its configuration and tokenizer. Servers hold it
    against the digest in the snapshot."""
    revision: Name | None = None
    """Commit, tag or branch of an `hf://` model (`uri` or `baseURI`), which has to be named: every server finds it by itself. Best a commit."""


class ServedVllm(ApiModel):
    """A vLLM server in each pod."""

    image: Name | None = None
    """Container image; another one is a promotion. Unset: the runtime's."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Devices that share one copy of the model."""
    gpu_memory_utilization: Real | None = Field(default=None, gt=0, le=1)
    """Share of a device's memory that the server takes. Unset: 0.9."""
    max_model_length: int | None = Field(default=None, ge=1, le=16_777_216)
    """Longest prompt and completion in tokens. Unset: the model's own."""
    max_num_seqs: int | None = Field(default=None, ge=1, le=65_536)
    """Sequences decoded at once. Unset: vLLM's own."""
    extra_arguments: Parameters = many(64, key="name")
    """Further server flags, without dashes; those that do more than tune the server are refused."""


class ServedEmbedded(ApiModel):
    """rollout's own engine, on the CPU: for small models, with no server of another image."""

    max_num_seqs: int | None = Field(default=None, ge=1, le=65_536)
    """Completions decoded at once. Unset: 16."""


class ServingEngine(OneOf):
    """What serves; another engine is a promotion."""

    members: ClassVar[tuple[str, ...]] = ("vllm", "embedded")

    vllm: ServedVllm | None = None
    """A vLLM server with its own flags."""
    embedded: ServedEmbedded | None = None
    """rollout's own engine, for small models on the CPU."""


class ApiKey(ApiModel):
    """A bearer token that clients may send."""

    name: Label
    """What it is called in metrics and limits."""
    secret_key_ref: SecretKeyRef
    """The key that holds its value; several let it be rotated with overlap."""


class EndpointTls(ApiModel):
    """TLS that servers end themselves."""

    secret_ref: NameRef
    """A Secret of type `kubernetes.io/tls` in the same namespace: `tls.crt`, the chain, and `tls.key`. One that is renewed is taken
    up without a restart."""


class CanaryGuard(ApiModel):
    """How much worse than what serves a candidate may be."""

    min_requests: int = Field(default=200, ge=1, le=1_000_000)
    """Requests of the candidate before it is judged; one that has had fewer at the end of `bakeSeconds` passes."""
    max_failed_share: Real | None = Field(default=None, ge=0, le=1)
    """By how much the share of requests that it fails may exceed that of what serves. Unset: 0.01."""
    max_first_byte_ratio: Real | None = Field(default=None, ge=1, le=1000)
    """How many times as long as of what serves the 95th percentile of the time to the first byte may be. Unset: 1.5."""


class CanarySide(ApiModel):
    """What one side of a canary has done while it was watched."""

    requests: int = Field(default=0, ge=0)
    """Requests that it was given."""
    failed_share: Real | None = None
    """Share of them that it failed. Unset: there were none."""
    first_byte_p95: Real | None = None
    """95th percentile of the seconds to the first byte, of requests that were answered. Unset: there were none."""


class CanaryFigures(ApiModel):
    """A candidate beside what serves."""

    candidate: CanarySide = Field(default_factory=CanarySide)
    """What the candidate has done."""
    serving: CanarySide = Field(default_factory=CanarySide)
    """What serves, counted over the same time."""


class Promotion(ApiModel):
    """How a changed endpoint becomes what is served: all its servers come up beside the others, and take over when they answer."""

    evaluations: tuple[SuiteRun, ...] = many(16)
    """Suites that rollout ships, asked of the candidate's own servers before any client is: every gate with `action: StopPromotion`
    must pass, or what serves goes on; those with `Warn` are told. Empty: no bar."""
    evaluation_seconds: int = Field(default=3600, ge=1, le=604_800)
    """Longest time that the evaluations may take; past it the candidate has failed."""
    canary_percent: int = Field(default=0, ge=0, le=100)
    """Share of sessions that the candidate answers while it is watched, once it has passed `evaluations`; 0 switches at once.
    A session (header `X-Session-Id`, the body's `user`, or a chat by its beginning) stays on one side."""
    bake_seconds: int = Field(default=600, ge=0, le=604_800)
    """How long the candidate of a canary is watched."""
    guard: CanaryGuard = Field(default_factory=CanaryGuard)
    """What sends the candidate of a canary back at once."""
    progress_deadline_seconds: int = Field(default=1800, ge=1, le=604_800)
    """Longest time without progress; past it the candidate has failed, and the one before goes on serving."""
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.canaryPercent) || !has(self.bakeSeconds)"
            " || self.canaryPercent == 0 || self.bakeSeconds > 0",
            "a canary is watched for bakeSeconds: make it more than 0",
            "bakeSeconds",
        ),
    )


class EndpointSpec(PodSettings):
    """What is wanted of an endpoint."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *PodSettings.rules,
        Rule(
            "!has(self.engine) || !has(self.engine.vllm) || !has(self.accelerator)"
            " || !has(self.accelerator.count) || !has(self.engine.vllm.tensorParallel)"
            " || self.engine.vllm.tensorParallel <= self.accelerator.count",
            "tensorParallel needs more devices than accelerator.count: raise it, or lower"
            " tensorParallel",
            "engine",
        ),
        Rule(
            "!has(self.scaling) || !has(self.scaling.hpa) || !has(self.replicas) || self.replicas > 0",
            "an autoscaler rests while replicas is 0: leave replicas out, or scaling",
            "replicas",
        ),
        Rule(
            "!has(self.route) || !has(self.tls)",
            "a Gateway ends TLS and reaches servers by plain HTTP: leave tls out, or route",
            "route",
        ),
        Rule(
            "!has(self.route) || (has(self.apiKeys) && size(self.apiKeys) > 0)",
            "whoever comes through a Gateway needs a key: name some in apiKeys",
            "route",
        ),
    )

    model: EndpointModel
    """The model to serve; a change is a promotion."""
    model_name: Name | None = None
    """Name that clients ask for. Unset: the name of this object."""
    runtime_ref: RuntimeRef | None = None
    """The platform's runtime. Unset: `default`, of the namespace or the cluster."""
    queue_name: Name | None = None
    """Kueue queue. Not supported by this version: refused; the runtime's does not hold for endpoints."""
    suspend: bool = False
    """Take the servers away and keep the address."""
    replicas: int = Field(default=1, ge=0, le=4096)
    """Servers wanted. `kubectl scale` and autoscalers, that of `scaling` or one of yours, set this field, which therefore always has a
    value: 1, the default, counts as unset beside `scaling`."""
    scaling: Scaling | None = None
    """Let the number of servers follow their load. Unset: it stays as `replicas` says."""
    route: EndpointRoute | None = None
    """The way in from outside the cluster, through Gateways. Unset: none."""
    engine: ServingEngine | None = None
    """What serves. Unset: vLLM with its defaults."""
    accelerator: Accelerator | None = None
    """Devices of a pod. Unset: none."""
    preemptible: bool = False
    """Run on capacity that may be taken away."""
    sampling: Sampling | None = None
    """What a request gets that does not say. Unset: temperature 1, nothing cut. Not supported by this version: refused."""
    api_keys: tuple[ApiKey, ...] = many(64, key="name")
    """Bearer tokens of clients, as `rollout infer keys create` makes them. Empty: none is asked for, and only pods of the
    namespace may reach the servers."""
    tls: EndpointTls | None = None
    """Clients speak TLS 1.3, at port 443 of the address. Unset: plain HTTP, at port 80."""
    promotion: Promotion = Field(default_factory=Promotion)
    """How a changed model, engine or image takes over."""
    rollback_to: ObjectName | None = None
    """A revision of `status.revisions` that serves instead of what the rest says, until this is taken out again:
    `rollout endpoint rollback`. It is not measured, and no canary. Unset: what the rest says."""
    revision_history_limit: int = Field(default=10, ge=1, le=64)
    """Revisions that are kept in status, to go back to."""
    request_seconds: int = Field(default=600, ge=1, le=86_400)
    """Longest answer; then the request ends with an error."""
    drain_seconds: int = Field(default=120, ge=1, le=86_400)
    """How long a server that goes may finish its requests."""


class Measured(ApiModel):
    """What one evaluation of a revision has come to."""

    name: Name
    """Name of the evaluation."""
    metric: Name
    """What was measured: the gate's metric, else `accuracy`."""
    value: Real | None = None
    """The mean. Unset: nothing was measured."""
    low: Real | None = None
    """Low end of its 95 % interval."""
    high: Real | None = None
    """High end of its 95 % interval."""
    num_prompts: int = Field(default=0, ge=0)
    """Prompts that were answered."""
    lower_bound: Real | None = None
    """What `low` must not be below. Unset: no gate."""
    passed: bool = True
    """Whether it is not below it."""


class Revision(ApiModel):
    """One model on one engine, and how much of it serves."""

    name: ObjectName
    """Name of its Deployment: that of the endpoint, with a digest of all that its pods are made of."""
    model_uri: Uri
    """Where the model comes from."""
    model_revision: Name | None = None
    """Commit, tag or branch of an `hf://` model."""
    model_digest: Digest | None = None
    """Digest of the object with a run's model, or of a snapshot's manifest, which servers verify. Unset: the model is neither."""
    image: Name
    """Image that serves it."""
    replicas: int = Field(default=0, ge=0)
    """Servers of this revision that exist."""
    ready: int = Field(default=0, ge=0)
    """Servers of this revision that answer."""
    weight: int = Field(default=0, ge=0, le=100)
    """Share of requests in percent that go to it."""
    creation_time: Timestamp | None = None
    """When it was first wanted."""
    served_time: Timestamp | None = None
    """When it last became what serves. Unset: never."""
    measured_by: ObjectName | None = None
    """The Job that has asked its servers what `promotion.evaluations` says. Unset: not measured."""
    measured: tuple[Measured, ...] = many(16, key="name")
    """What it has found."""
    watched_by: ObjectName | None = None
    """The Job that has watched it as a canary. Unset: it was none, or is one."""
    canary: CanaryFigures | None = None
    """What it has seen."""


class EndpointStatus(ApiModel):
    """What is known of the endpoint."""

    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this status speaks about."""
    conditions: tuple[Condition, ...] = many(16, key="type")
    """Aspects of the endpoint's state."""
    replicas: int = Field(default=0, ge=0)
    """Servers that exist, of all revisions."""
    ready_replicas: int = Field(default=0, ge=0)
    """Servers that answer, of all revisions."""
    selector: Text | None = None
    """Label selector of the servers, for the scale subresource."""
    url: Uri | None = None
    """Address inside the cluster."""
    current_revision: ObjectName | None = None
    """Name of the revision that has passed, and serves."""
    revisions: tuple[Revision, ...] = many(64, key="name")
    """Revisions, the newest first."""


class RolloutEndpoint(ApiModel):
    """A model served online behind one address; a changed one takes over only once its servers answer."""

    api_version: Literal["rollout.dev/v1alpha1"] = "rollout.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["RolloutEndpoint"] = "RolloutEndpoint"
    """Kind of the object."""
    metadata: RunMeta
    """Name, namespace and labels of the object."""
    spec: EndpointSpec
    """What is wanted of the endpoint."""
    status: EndpointStatus | None = None
    """What is known of it; written by the operator."""
