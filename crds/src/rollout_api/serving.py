"""What the operator tells the pods of an endpoint, as JSON in one variable each: servers, and who measures them.

An order holds no secret.
"""

from pydantic import Field

from rollout_api.base import ApiModel, Digest, Label, Name, Text, Uri, many
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_api.v1alpha1.inference.endpoint import CanaryGuard, ServingEngine
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import AdoptOrder

VARIABLE = "ROLLOUT_SERVE_ORDER"
"""The variable of the container that holds it."""
KEYS_MAX = 64
HOLD_VARIABLE = "ROLLOUT_HOLD_ORDER"
"""That of the container that holds requests while there are no servers."""
WATCH_VARIABLE = "ROLLOUT_WATCH_ORDER"
"""That of the container that watches a canary."""
MEASURE_VARIABLE, MEASURE_KEY_VARIABLE = "ROLLOUT_MEASURE_ORDER", "ROLLOUT_MEASURE_KEY"
"""Those of the container that measures an endpoint's candidate: its order, and the key that it sends."""


class LiveVersion(ApiModel):
    """The weights that a run has saved last: the content of the file that the kubelet keeps up to date."""

    run: Name
    """UID of the run: of another one these are nobody's to take."""
    step: int = Field(ge=0)
    """Optimizer step that they are of."""
    object: Digest
    """The object that holds them, in the run's own place."""
    digest: Digest
    """Of the weights themselves."""


class LiveOrder(ApiModel):
    """A run whose weights are followed while it is at work. The file names objects, and only this says where they may lie."""

    name: Label
    """Name of the run: what its versions are called by."""
    run: Name
    """UID of the run."""
    place: Uri
    """Where the run keeps its objects."""
    chat_template: Text | None = None
    """What the run renders chats with. Unset: the model's own."""
    file: FilePath
    """The file with a `LiveVersion`."""


class ServeOrder(ApiModel):
    """One server: a gateway, and the engine behind it."""

    name: Name
    """What clients ask for."""
    uri: Uri
    """Where the model comes from."""
    revision: Name | None = None
    """Commit, tag or branch of an `hf://` model."""
    storage: Storage | None = None
    """How the bucket of a model that a run has handed on, or of a run that is followed, is reached. Unset: the model is none of these."""
    snapshot: AdoptOrder | None = None
    """The snapshot whose weights are served; `uri` is the model that its run began with. Unset: the weights are those of `uri`."""
    live: LiveOrder | None = None
    """The run whose weights are served as it saves them; `uri` is the model that it began with. Unset: the weights stay what they are."""
    engine: ServingEngine
    """What computes the answers."""
    keys: tuple[Label, ...] = many(KEYS_MAX)
    """Names of the clients' keys: of files in the folder of keys. Empty: nobody is asked for one."""
    keys_dir: FilePath
    """Folder of the keys: a Secret's, which the kubelet keeps up to date."""
    work_dir: FilePath
    """Folder for whatever the server writes."""
    port: int = Field(ge=1, le=65_535)
    """Where it listens."""
    tls_port: int | None = Field(default=None, ge=1, le=65_535)
    """Where it listens with TLS, beside `port`. Unset: nowhere."""
    tls_dir: FilePath | None = None
    """Folder of the certificate and its key: a Secret's, which the kubelet keeps up to date."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of the engine."""
    on_accelerator: bool = False
    """Whether the engine has devices."""
    request_seconds: int = Field(ge=1)
    """Longest answer."""
    drain_seconds: int = Field(ge=1)
    """How long open requests may take when the pod ends."""
    leave_seconds: int = Field(ge=0)
    """How long a pod that ends goes on taking requests: until nobody sends it any."""
    canary_file: FilePath | None = None
    """The file that says which sessions a candidate answers, which the kubelet keeps up to date. Unset: none."""


class HoldOrder(ApiModel):
    """Who holds requests while an endpoint has no servers."""

    name: Name
    """What clients ask for."""
    servers: Uri
    """Where servers answer once there are some, `http://host:port`."""
    keys: tuple[Label, ...] = many(KEYS_MAX)
    """Names of the clients' keys: of files in the folder of keys. Empty: nobody is asked for one."""
    keys_dir: FilePath
    """Folder of the keys: a Secret's, which the kubelet keeps up to date."""
    work_dir: FilePath
    """Folder for whatever is written."""
    port: int = Field(ge=1, le=65_535)
    """Where it listens."""
    request_seconds: int = Field(ge=1)
    """Longest request, from its arrival here to the end of its answer."""
    drain_seconds: int = Field(ge=1)
    """How long open requests may take when the pod ends."""
    leave_seconds: int = Field(ge=0)
    """How long a pod that ends goes on taking requests: until nobody sends it any."""


class MeasureOrder(ApiModel):
    """One candidate: who answers for it, and what is asked."""

    url: Uri
    """Address of its servers inside the cluster, up to `/v1`."""
    model: Name
    """Its name there."""
    evaluations: tuple[SuiteRun, ...] = many(16, num_min=1)
    """What is asked and how; each is named."""


class WatchOrder(ApiModel):
    """One canary: both sides, how long, and what ends it early."""

    candidate: Name
    """Name that stands for the addresses of the candidate's pods."""
    serving: Name
    """The same of what serves."""
    port: int = Field(ge=1, le=65_535)
    """Where their pages of metrics are."""
    seconds: int = Field(ge=1)
    """How long both are watched."""
    guard: CanaryGuard
    """What ends it at once."""
