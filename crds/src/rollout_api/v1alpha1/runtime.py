"""RolloutRuntime, ClusterRolloutRuntime: the platform's part: what a user need not, or must not, set."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Label, Name, ObjectName, OneOf, many, unique
from rollout_api.v1alpha1.common import Condition, EnvVars, NameRef
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.objects.meta import Meta
from rollout_api.v1alpha1.pods.allowed import Allowed, AllowedNamespaces
from rollout_api.v1alpha1.pods.pods import (
    AnnotationValue,
    LabelKey,
    LabelValue,
    PodSettings,
    Quantity,
    Toleration,
)
from rollout_api.v1alpha1.pods.roles import Engine
from rollout_api.v1alpha1.storage import Storage

Image = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Signer = Annotated[str, StringConstraints(pattern=r"^ed25519:[0-9a-f]{64}$", max_length=72)]
UserId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Images(ApiModel):
    """Container images, best by digest."""

    worker: Image | None = None
    """Coordinator, actors and learner. Unset: what the operator was installed with (the chart's `images.worker`)."""
    vllm: Image | None = None
    """vLLM server. Unset: what the operator was installed with, vLLM's own image unless the chart's `images.vllm` says another."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When images are pulled. Unset: Kubernetes' own rule."""
    pull_secrets: tuple[NameRef, ...] = many(16, key="name")
    """Secrets for the registry."""


class PersistentVolumeClaim(ApiModel):
    """A claim of a volume in the run's namespace."""

    claim_name: ObjectName
    """Name of the claim."""


class HostPath(ApiModel):
    """A folder of the node."""

    path: FilePath
    """Path on the node."""


class EmptyDir(ApiModel):
    """A folder that lives as long as the pod."""

    medium: Literal["Memory"] | None = None
    """Memory, or unset for disk."""
    size_limit: Quantity | None = None
    """Most that the folder may hold."""


class SecretVolume(ApiModel):
    """The keys of a Secret as files."""

    secret_name: ObjectName
    """Name of the Secret."""


class Nfs(ApiModel):
    """A folder of an NFS server; never for a SQLite ledger."""

    server: Name
    """Address of the server."""
    path: FilePath
    """Path that the server exports."""


class Csi(ApiModel):
    """An ephemeral volume of a CSI driver."""

    driver: Name
    """Name of the driver."""
    volume_attributes: dict[LabelKey, AnnotationValue] = Field(default_factory=dict, max_length=32)
    """Settings that the driver understands."""


class VolumeSource(OneOf):
    """Where the bytes of a volume are."""

    members: ClassVar[tuple[str, ...]] = (
        "persistent_volume_claim",
        "host_path",
        "empty_dir",
        "config_map",
        "secret",
        "nfs",
        "csi",
    )

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A claim in the run's namespace."""
    host_path: HostPath | None = None
    """A folder of the node."""
    empty_dir: EmptyDir | None = None
    """An empty folder that ends with the pod."""
    config_map: NameRef | None = None
    """The keys of a ConfigMap as files."""
    secret: SecretVolume | None = None
    """The keys of a Secret as files."""
    nfs: Nfs | None = None
    """A folder of an NFS server."""
    csi: Csi | None = None
    """An ephemeral volume of a CSI driver."""


class Volume(VolumeSource):
    """A volume and where it is mounted."""

    name: Label
    """Name of the volume."""
    mount_path: FilePath
    """Where it appears in the main container."""
    read_only: bool = False
    """Mount it so that nobody can write."""


class SeccompProfile(ApiModel):
    """System calls that are allowed."""

    type: Literal["RuntimeDefault", "Localhost", "Unconfined"] = "RuntimeDefault"
    """Which profile of system calls holds."""
    localhost_profile: FilePath | None = None
    """File on the node, with type Localhost."""


class SecurityContext(ApiModel):
    """Identity and limits of the pods' processes."""

    run_as_user: UserId | None = None
    """User id. Unset: the image's."""
    run_as_group: UserId | None = None
    """Group id. Unset: the image's."""
    fs_group: UserId | None = None
    """Group that owns volumes."""
    supplemental_groups: tuple[UserId, ...] = many(32)
    """Further groups of the processes, by number."""
    run_as_non_root: bool = True
    """Refuse to start as root."""
    seccomp_profile: SeccompProfile | None = None
    """System calls that are allowed. Unset: the container runtime's default profile."""


class RoleTemplate(PodSettings):
    """What the platform sets on the pods of one role; users' settings win where both may set."""

    service_account_name: ObjectName | None = None
    """Service account. Unset: one of the run's own, without rights."""
    service_account_annotations: dict[LabelKey, AnnotationValue] = Field(
        default_factory=dict, max_length=16
    )
    """Put on the run's own service account: cloud identities by IRSA or Workload Identity. `$(namespace)` in a value
    stands for the run's namespace, so that each namespace has an identity of its own."""
    security_context: SecurityContext | None = None
    """Identity and limits. Unset: non-root, default seccomp, no capabilities."""
    volumes: Annotated[tuple[Volume, ...], unique(lambda item: item.name)] = many(32, key="name")
    """Further volumes that the pods mount."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods."""
    termination_grace_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """Time to end in order. Unset: 60 for workers, 120 for the coordinator. Never 0: a pod on a silent node
    would leave the API at once, and its successor start beside it."""


class Roles(ApiModel):
    """What the pods of each role have by default."""

    coordinator: RoleTemplate | None = None
    """What the coordinator's pod has by default."""
    learner: RoleTemplate | None = None
    """What the learner's pods have by default."""
    actors: RoleTemplate | None = None
    """Actors and the servers of endpoints."""


class NetworkProfile(ApiModel):
    """What pods need to use a fast network between devices."""

    annotations: dict[LabelKey, AnnotationValue] = Field(default_factory=dict, max_length=16)
    """Annotations of the pods, such as further interfaces."""
    env: EnvVars = many(32, key="name")
    """Environment variables, such as those of NCCL."""
    resources: dict[LabelKey, Quantity] = Field(default_factory=dict, max_length=16)
    """Extended resources per pod, such as vpc.amazonaws.com/efa."""
    host_network: bool = False
    """Use the node's network. What it costs: NetworkPolicies do not hold for such pods, so whoever reaches the node
    reaches the learner's ranks, which trust each other; and pods of one node share its ports."""


class AcceleratorClass(ApiModel):
    """A kind of device that runs ask for by name."""

    name: Label
    """Name that `accelerator.className` refers to."""
    resource_name: LabelKey = "nvidia.com/gpu"
    """Extended resource of one device."""
    memory: Quantity
    """Memory of one device; plan time compares with it."""
    per_node: int | None = Field(default=None, ge=1, le=64)
    """Devices of one node. Unset: not checked."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels of nodes that have it."""
    preemptible_node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=32
    )
    """Labels of such nodes that may be taken away; used for `preemptible: true`."""
    tolerations: tuple[Toleration, ...] = many(32)
    """Taints of such nodes."""
    topology_key: LabelKey | None = None
    """Node label within which a learner should stay. Unset: no wish."""
    network: NetworkProfile | None = None
    """Fast network of such nodes. Unset: the cluster's."""


class ModelCache(OneOf):
    """Where downloaded models are kept between runs, mounted read-only where an author's code runs."""

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """One claim that the runs of a namespace share."""
    host_path: HostPath | None = None
    """A folder of each node, in which each namespace has one of its own."""
    empty_dir: EmptyDir | None = None
    """Nowhere: every pod downloads."""


class Sandbox(ApiModel):
    """Pods in which what a policy writes is run, one for each episode that needs it, without network, token or volume."""

    runtime_class_name: ObjectName | None = None
    """RuntimeClass such as gvisor or kata. Unset: that of the nodes, with `userNamespaces`."""
    user_namespaces: bool = False
    """Run them in user namespaces (`hostUsers: false`): the nodes' kernel is shared. One of both must be set."""
    image: Image | None = None
    """Image with a `python3` of 3.9 or newer and what programs may import. Unset: that of the workers."""
    memory: Quantity = "1Gi"
    """Memory of a pod, files included; a program may use 128Mi less."""
    cpu: Quantity = "1"
    """Processors of a pod."""
    memory_request: Quantity | None = None
    """Memory that the scheduler counts a pod for, as most programs use little. Unset: `memory`."""
    cpu_request: Quantity | None = None
    """Processors that the scheduler counts a pod for. Unset: `cpu`."""
    max_pods: int = Field(default=32, ge=1, le=1000)
    """Pods of one run at a time; further episodes wait for one."""
    warm_pods: int = Field(default=0, ge=0, le=1000)
    """Pods that a run keeps ready, so that an episode does not wait for one to start."""
    lifetime_seconds: int = Field(default=3600, ge=60, le=86_400)
    """Longest time that an episode may have a pod, and that one is kept ready."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels of the nodes that they run on."""
    tolerations: tuple[Toleration, ...] = many(32)
    """Taints of these nodes."""


class Ceilings(ApiModel):
    """Most that one run may ask for."""

    actor_replicas: int | None = Field(default=None, ge=0, le=4096)
    """Actors. Unset: no bound."""
    learner_nodes: int | None = Field(default=None, ge=0, le=1024)
    """Learner nodes. Unset: no bound."""
    accelerators: int | None = Field(default=None, ge=0, le=1_000_000)
    """Devices over all roles. Unset: no bound."""
    active_seconds: int | None = Field(default=None, ge=1, le=315_360_000)
    """Running time; also the bound of runs that set none. Unset: no bound."""


class RuntimeSpec(ApiModel):
    """What the platform provides. A run copies it when a run attempt starts."""

    engine: Engine | None = None
    """Engine of runs that name none. Unset: vllm."""
    images: Images | None = None
    """Container images that runs use by default."""
    accelerator_classes: Annotated[tuple[AcceleratorClass, ...], unique(lambda item: item.name)] = (
        many(64, key="name")
    )
    """Devices that runs may ask for."""
    roles: Roles | None = None
    """Pod templates by role."""
    storage: Storage | None = None
    """Object store and ledger of runs that name none."""
    model_cache: ModelCache | None = None
    """Where models are kept. Unset: every pod downloads."""
    queue_name: Name | None = None
    """Kueue queue of runs that name none."""
    sandbox: Sandbox | None = None
    """Where what a policy writes is run. Unset: runs with tools or environments that run code are refused."""
    ceilings: Ceilings | None = None
    """Most that one run may ask for."""
    allowed: Allowed | None = None
    """What runs may add themselves: annotations, labels, tolerations, priority classes, images, storage. Unset: none of it."""
    trusted_signers: tuple[Signer, ...] = many(16)
    """Other installations whose snapshots runs may begin with, by their keys: `ed25519:` and 64 hexadecimal digits. Empty: this installation's own only."""


class ClusterRuntimeSpec(RuntimeSpec):
    """What the platform provides, and to whom."""

    allowed_namespaces: AllowedNamespaces | None = None
    """Namespaces whose runs may use it. Unset: none."""


class RuntimeStatus(ApiModel):
    """What is known of the runtime."""

    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this status speaks about."""
    conditions: tuple[Condition, ...] = many(16, key="type")
    """`Ready` is True when nothing that the spec names is missing."""


class RolloutRuntime(ApiModel):
    """The platform's settings for the runs of one namespace."""

    api_version: Literal["rollout.dev/v1alpha1"] = "rollout.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["RolloutRuntime"] = "RolloutRuntime"
    """Kind of the object."""
    metadata: Meta
    """Name, namespace and labels of the object."""
    spec: RuntimeSpec
    """What the platform provides."""
    status: RuntimeStatus | None = None
    """What is known of it; written by the operator."""


class ClusterRolloutRuntime(ApiModel):
    """The platform's settings for the runs of every namespace."""

    api_version: Literal["rollout.dev/v1alpha1"] = "rollout.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["ClusterRolloutRuntime"] = "ClusterRolloutRuntime"
    """Kind of the object."""
    metadata: Meta
    """Name and labels of the object."""
    spec: ClusterRuntimeSpec
    """What the platform provides."""
    status: RuntimeStatus | None = None
    """What is known of it; written by the operator."""
