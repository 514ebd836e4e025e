"""RolloutEndpoint: online inference behind an OpenAI-compatible address."""

from typing import Literal

from pydantic import Field

from rollout_api.base import ApiModel, Digest, Name, Text, Timestamp, Uri, filled, many
from rollout_api.v1alpha1.common import Condition, RuntimeRef, SecretKeyRef
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_api.v1alpha1.meta import RunMeta
from rollout_api.v1alpha1.model import Model
from rollout_api.v1alpha1.roles import Serving
from rollout_api.v1alpha1.sampling import Sampling


class ResolvedModel(ApiModel):
    """The model that was really used."""

    uri: Uri | None = None
    """Where it came from."""
    revision: Name | None = None
    """Commit it was resolved to."""
    digest: Digest | None = None
    """Digest of its tensors."""


class Promotion(ApiModel):
    """How a changed model becomes the one that is served."""

    evaluations: tuple[SuiteRun, ...] = many(16)
    """Measured on the candidate; every gate with `action: Fail` must pass. Unset: no bar."""
    canary_percent: int = filled(0, ge=0, le=100)
    """Share of requests that the candidate answers while it is watched; 0 switches at once."""
    bake_seconds: int = filled(600, ge=0, le=604_800)
    """How long the candidate is watched."""


class EndpointSpec(Serving):
    """What is wanted."""

    model: Model
    """The model to serve; a change is a promotion."""
    model_name: Name | None = None
    """Name that clients ask for. Unset: the name of this object."""
    runtime_ref: RuntimeRef | None = None
    """The platform's runtime. Unset: `default`, of the namespace or the cluster."""
    queue_name: Name | None = None
    """Kueue queue. Unset: the runtime's, else none."""
    suspend: bool = False
    """Take the servers away and keep the address."""
    sampling: Sampling | None = None
    """What a request gets that does not say. Unset: temperature 1, nothing cut."""
    api_key: SecretKeyRef | None = None
    """Bearer token that clients must send. Unset: none is asked for."""
    promotion: Promotion = filled(default_factory=Promotion)
    """How a changed model takes over."""
    request_seconds: int = filled(600, ge=1, le=86_400)
    """Longest answer; then the request ends with an error."""
    drain_seconds: int = filled(120, ge=1, le=86_400)
    """How long a server that goes may finish its requests."""


class EndpointStatus(ApiModel):
    """What is."""

    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this status speaks about."""
    conditions: tuple[Condition, ...] = many(16, key="type")
    """Aspects of the endpoint's state."""
    replicas: int = Field(default=0, ge=0)
    """Servers that exist."""
    ready_replicas: int = Field(default=0, ge=0)
    """Servers that answer."""
    selector: Text | None = None
    """Label selector of the servers, for the scale subresource."""
    url: Uri | None = None
    """Address inside the cluster."""
    model: ResolvedModel | None = None
    """The model that is served."""
    candidate: ResolvedModel | None = None
    """The model that is being promoted."""
    promotion_time: Timestamp | None = None
    """When the served model took over."""


class RolloutEndpoint(ApiModel):
    """A model served online; it takes a new model over only past its gates. Stored, and not acted on by this version."""

    api_version: Literal["rollout.dev/v1alpha1"] = "rollout.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["RolloutEndpoint"] = "RolloutEndpoint"
    """Kind of the object."""
    metadata: RunMeta
    """Name, namespace, labels."""
    spec: EndpointSpec
    """What is wanted."""
    status: EndpointStatus | None = None
    """What is."""
