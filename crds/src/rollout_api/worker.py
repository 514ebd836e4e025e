"""WorkerConfig: the one file that every worker process reads.

A supervisor writes it whole. An operator writes the ``WorkerOrder``, which is what can be known without
a look at model and data; the pods find out the rest.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rollout_api.base import ApiModel, Digest, Name, Text, Uri
from rollout_api.fields.moved import with_moved
from rollout_api.v1alpha1.common import Dtype
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.pods.pods import Quantity
from rollout_api.v1alpha1.pods.roles import EngineName
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.run_status import Grade
from rollout_api.v1alpha1.storage import Storage

CallerRole = Literal["actor", "learner", "operator"]
"""Who calls a coordinator; its table of endpoints says what each may do."""


def audience_of(uid: str) -> str:
    """The audience of tokens for the coordinator of one run."""
    return f"rollout/{uid}"


class RunIdentity(ApiModel):
    """Which run this is."""

    name: Name
    """Name of the run."""
    namespace: Name = "default"
    """Namespace of the run."""
    uid: Name
    """Identity of the run: object prefixes and the ledger's first row use it."""


class RoutedExperts(ApiModel):
    """The experts of a policy whose training samples tell which of them computed each token."""

    layers: int = Field(ge=1)
    """Layers that choose experts."""
    experts: int = Field(ge=1)
    """Experts of each."""
    top_k: int = Field(ge=1)
    """Experts that a token goes to in each."""


class ResolvedRun(ApiModel):
    """What plan time found out: no worker looks anything up again."""

    model_path: FilePath
    """Local folder with config.json, model.safetensors and the tokenizer."""
    model_digest: Digest
    """Digest of the model's tensors (`rollout.weights.digest`)."""
    dtype: Dtype
    """Number format of the policy."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end an assistant turn."""
    pad_token_id: int = 0
    """Token id that fills the end of a row; a reward model's score is read before it."""
    prompt_tokens_max: int = Field(ge=1)
    """Longest prompt in tokens; fixed shapes are made from it."""
    models: dict[str, FilePath] = Field(default_factory=dict)
    """Local folders of further models, by role (`reference`, `critic`, `reward/<name>`)."""
    model_digests: dict[str, Digest] = Field(default_factory=dict)
    """Digest of each further model's files, by role."""
    packed_models: dict[str, Digest] = Field(default_factory=dict)
    """Objects of the run's own store that hold models which the coordinator's pod has fetched from buckets, by role; empty for the policy's. The other pods take them there."""
    code_digest: Digest | None = None
    """Digest of the user's wheel. Unset: the code is no wheel."""
    data_digests: dict[str, str] = Field(default_factory=dict)
    """Digest of each data source, by role (`train`, or an evaluation's name)."""
    tool_digests: dict[str, str] = Field(default_factory=dict)
    """Digest of what the policy sees of each tool (name, description, arguments), by its name."""
    plugin_digests: dict[str, str] = Field(default_factory=dict)
    """Digest of the files of each plugin, by its path in the run's code, or of its image, by its container's name."""
    bad_records: int = Field(default=0, ge=0)
    """Records of the training data that cannot be used and are left out (`onBadRecord: Skip`)."""
    left_out: tuple[int, ...] = ()
    """Positions of rows of the training data whose prompt has more than `train.maxPromptTokens` tokens."""
    experts: RoutedExperts | None = None
    """Experts of the policy, where it is reinforced. Unset: it has none, or none are sampled for."""
    engine: EngineName = "embedded"
    """Engine of the actors."""
    grade: Grade = "Exact"
    """What may be claimed about equality of this run."""


class Layout(ApiModel):
    """Where things are for this process."""

    run_dir: FilePath
    """Folder of the run."""
    coordinator_url: Uri
    """Base address of the coordinator."""
    listen_host: Name | None = None
    """Address that the coordinator binds, such as `0.0.0.0`; the port is that of `coordinatorUrl`. Unset: its host."""
    ca_file: FilePath | None = None
    """Certificates (PEM) that may have signed the coordinator's; read again when the file changes. Needed for https."""
    certificate_file: FilePath | None = None
    """The coordinator's certificate with its chain (PEM); read again when the file changes. Needed for https."""
    key_file: FilePath | None = None
    """Private key of that certificate (PEM)."""
    token_file: FilePath
    """File with the run's secret or, with `authentication`, with this process's own token; read again when it changes."""
    objects_dir: FilePath
    """Root of the local object store, or of its cache."""
    objects_served: bool = False
    """Whether actors and learner reach objects through the coordinator, sharing neither a folder nor a bucket with it."""
    objects_uri: Uri | None = Field(default=None, alias="objectsUri")
    """Where other runs find the objects: a place in a bucket, or `pvc://CLAIM/FOLDER`. Unset: nowhere."""
    sources_dir: FilePath | None = None
    """Folder with the volumes, by claim, of runs that this one starts from; in the coordinator's pod only."""
    rows_socket: FilePath | None = None
    """Where the container beside the coordinator's opens the data, with the author's code and variables. Unset: the
    coordinator starts a child for that where the manifest names such code."""
    wheel_dir: FilePath | None = None
    """Folder into which the coordinator unpacks the author's wheel, for the container that opens the data. Unset: its own."""
    ledger_path: FilePath
    """SQLite file of the ledger; only the coordinator opens it."""
    service_port: int | None = Field(default=None, ge=1, le=65_535)
    """Where a training service listens for clients, beside the coordinator's port. Unset: the run is none."""
    api_keys_dir: FilePath | None = None
    """Folder of a training service's keys, one file a key: a Secret's, which the kubelet keeps up to date."""

    @model_validator(mode="after")
    def _encrypts_whole_or_not(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificateFile and keyFile belong together: set both, or neither")
        if self.coordinator_url.startswith("https:") and self.ca_file is None:
            raise ValueError(f"coordinatorUrl is {self.coordinator_url}: set caFile, to know it by")
        return self


class Authentication(ApiModel):
    """Who may call the coordinator in a cluster: ServiceAccount tokens, verified without asking anybody.

    A token must be for the audience `rollout/<uid>` of this run.
    """

    issuer: Text
    """The `iss` that tokens must carry: the cluster's `issuer`."""
    jwks_file: FilePath
    """Public keys of the issuer (a JSON Web Key Set); read again when a token names a key that is not there."""
    accounts: dict[Text, CallerRole]
    """Role by `sub`, such as `system:serviceaccount:<namespace>:<account>`; no other account is let in."""


class ProgressWriting(ApiModel):
    """Where the coordinator writes `status.progress` of its own run."""

    api_url: Uri
    """Address of the API server."""
    token_file: FilePath
    """File with a token for it; read again each time."""
    ca_file: FilePath | None = None
    """Certificates (PEM) that the API server is known by. Unset: plain HTTP on loopback."""
    every_seconds: float = Field(default=10.0, ge=1.0, le=86_400.0)
    """Time between two writes, unless live settings say otherwise."""


class PodShape(ApiModel):
    """What the pods of one worker are, as bills count them."""

    pods: int = Field(default=1, ge=1)
    """Pods of one worker: the nodes of a learner."""
    requests: tuple[dict[str, Quantity], ...] = ()
    """What each container of a pod asks for."""
    instance_type: Name | None = None
    """Type of node that it is placed on. Unset: its manifest does not say."""
    capacity: Literal["OnDemand", "Spot"] | None = None
    """Whether it may be taken away. Unset: nobody says."""


class SandboxOrder(ApiModel):
    """How the coordinator makes sandbox pods."""

    template: dict[str, Any]
    """`metadata` and `spec` of a pod; its name, owner, command and variables are put in."""
    port: int = Field(ge=1024, le=65_535)
    """Where a pod hears the actor that it is given to."""
    memory: Quantity
    """Memory of one, files included; what a program may use is a little less."""
    user_namespaces: bool = False
    """Whether a pod must find itself in a user namespace, and refuses to begin otherwise."""
    pods_max: int = Field(ge=1)
    """Pods at a time."""
    warm: int = Field(default=0, ge=0)
    """Pods that are kept ready."""
    age_seconds: float = Field(gt=0)
    """Longest time that one is had, or kept ready."""


class RestoreOrder(ApiModel):
    """The snapshot that a run begins with, where its ledger has not begun."""

    snapshot: Name
    """Its id: 64 hexadecimal digits."""
    place: Uri
    """The objects that hold it: `<storage.uri>/<namespace>/<uid>` of the run that it is of."""
    trusted: tuple[Name, ...] = ()
    """Signers that are believed, as `ed25519:` and 64 hexadecimal digits."""
    foreign: tuple[Name, ...] = ()
    """Those of `trusted` that are other installations: their namespaces are not this one's."""
    request: Name | None = None
    """`restoreFrom.request`: another one than the run went back with takes it back to this snapshot once more."""


class AdoptOrder(RestoreOrder):
    """The snapshot that a pod reads to say what it is, and whether it may be believed."""

    namespace: Name
    """Namespace of the object; a snapshot of this installation must be of it."""
    endpoint: Uri | None = None
    """Address of the store's server. Unset: the cloud's own."""
    region: Name | None = None
    """Region of the bucket. Unset: the environment's."""


class PurgeOrder(ApiModel):
    """The snapshot whose bytes a pod removes, and what it must leave."""

    snapshot: Name
    """UID of the RolloutSnapshot: only manifests that were made for it are removed."""
    run: RunIdentity
    """The run that it is of; nothing but that run's own place is touched."""
    storage: Storage
    """Where the run keeps objects and records, as its pods were told."""
    ledger: Literal["Alive", "Kept", "Gone"]
    """`Alive`: the run goes on and deletes its objects itself. `Kept`: what the ledger names stays. `Gone`: there is none."""
    ledger_path: FilePath | None = None
    """The ledger's SQLite file, where it is kept in one."""


class WorkerOrder(ApiModel):
    """What is known of a run before anybody has looked at its model and data."""

    run: RunIdentity
    """Which run this is."""
    attempt: int = Field(default=1, ge=1)
    """Run attempt that these processes belong to."""
    generation: int = Field(default=0, ge=0)
    """Generation of the object that `spec` was taken from; live settings of an older one are void."""
    spec: RolloutRunSpec
    """The run's spec with every preset resolved."""
    layout: Layout
    """Where things are."""
    authentication: Authentication | None = None
    """Who may call the coordinator. Unset: whoever holds the run's secret (one machine)."""
    progress: ProgressWriting | None = None
    """Where progress is written. Unset: nowhere but in the coordinator's own status."""
    shapes: dict[Literal["coordinator", "learner", "actor"], PodShape] = Field(default_factory=dict)
    """What the pods of each role ask for, for what the run costs. Empty: the run is on one machine."""
    sandboxes: SandboxOrder | None = None
    """Pods in which what the policy writes is run. Unset: on this machine, in bubblewrap, where a run needs it."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Compute threads of one actor or learner process; the same all over the run, as sums depend on it."""
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    """Time between a worker's signs of life."""
    lease_seconds: float = Field(default=30.0, gt=0)
    """Time after which work of a silent worker is given to another."""
    grace_seconds: float = Field(default=30.0, gt=0)
    """Time that an actor has from SIGTERM to the kill that follows it."""
    learner_grace_seconds: float = Field(default=30.0, gt=0)
    """The same of the learner's processes."""
    restore: RestoreOrder | None = None
    """What the run begins with. Unset: with its model."""
    code_files: tuple[FilePath, ...] = ()
    """Files with pickled user functions, loaded before rewards and environments are built."""

    @model_validator(mode="before")
    @classmethod
    def _read_what_was_written_before(cls, document: Any) -> Any:
        if isinstance(document, dict) and isinstance(document.get("spec"), dict):
            return {**document, "spec": with_moved(document["spec"])}
        return document


class WorkerConfig(WorkerOrder):
    """Everything a coordinator, actor or learner needs to know."""

    spec_digest: Digest
    """blake3 of the canonical resolved spec; the root of the hash chain."""
    identity_format: int = Field(default=1, ge=1)
    """Form of the identity that `specDigest` covers; a run goes on under the form that it began with."""
    resolved: ResolvedRun
    """What a look at model and data has found."""
    reloads_plugins: bool = False
    """Whether new episodes are played with what lies in the folders of plugins now (Fast, on one machine)."""
